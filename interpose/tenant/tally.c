/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The book of this process's charges. usage.shm shows it to the grant; the copy here is the value that must stand in
 * our slot, whichever that is, so that a charge is never below the truth (proto/region.h) even while the slot changes.
 *
 *   one word per device:   | slot: 8 | inside: 10 | bytes: 46 |
 *
 *   take     inside += 1, bytes += n      reserve n in slot          inside -= 1 (and bytes -= n when refused)
 *   return   inside += 1                  lower slot by n            inside -= 1, bytes -= n
 *   move     waits for inside = 0         new slot's charge = bytes  slot = the new one
 *
 * The instruction that changes the bytes also returns their slot, and the slot cannot change while the thread is
 * inside: some dozen instructions, never a driver call. The bytes include an allocation before its driver call begins,
 * so it moves along. The move is written to the new slot before any thread can charge there.
 */
#include "interpose/tenant/tally.h"

#include <sched.h>

#include "interpose/tenant/guest_page.h"

#define INSIDE (UINT64_C(1) << TALLY_INSIDE_SHIFT)
/* No GPU has so much, nor have many together; far from the count's bits even when several threads request it at
 * once. */
#define TALLY_MOST (UINT64_C(1) << 42)
/* A running thread stays inside for less than a microsecond. One that a debugger has stopped, or that the waiting
 * thread itself has interrupted, is not waited for for ever. */
#define MOVE_PATIENCE 10000

static uint32_t slot_of(uint64_t word)
{
	return (uint32_t)(word >> TALLY_SLOT_SHIFT);
}

static uint64_t *word_of(int device)
{
	return &guest_page->tally[device].charged;
}

/* Enter and add bytes; returns the slot in which they are to be charged. */
static uint32_t enter(int device, uint64_t bytes)
{
	return slot_of(__atomic_fetch_add(word_of(device), INSIDE + bytes, __ATOMIC_SEQ_CST));
}

/* Leave, and keep the bytes that were added. */
static void leave(int device)
{
	__atomic_fetch_sub(word_of(device), INSIDE, __ATOMIC_SEQ_CST);
}

/* Leave and subtract bytes; not below 0, however much a caller returns. */
static void leave_less(int device, uint64_t bytes)
{
	uint64_t *word = word_of(device), was = __atomic_load_n(word, __ATOMIC_RELAXED), less;

	do
		less = (was & TALLY_BYTES) < bytes ? was & TALLY_BYTES : bytes;
	while (!__atomic_compare_exchange_n(word, &was, was - INSIDE - less, true, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
}

bool tally_take(int device, uint64_t bytes, uint64_t limit_bytes)
{
	const struct sluice_guest *guest = &guest_page->guest;
	bool sane = bytes <= limit_bytes && bytes < TALLY_MOST;
	uint32_t slot = enter(device, sane ? bytes : 0);
	bool taken; /* invalid sizes are refused there, and counted as refused */

	taken = sluice_memory_reserve(guest->policy, guest->usage, slot, (uint32_t)device, sane ? bytes : UINT64_MAX,
	                              limit_bytes) == 0;
	if (taken)
		leave(device);
	else
		leave_less(device, sane ? bytes : 0);
	return taken;
}

void tally_force(int device, uint64_t bytes)
{
	uint32_t slot = enter(device, bytes);

	__atomic_fetch_add(&guest_page->guest.usage->slot[slot].dev[device].charged_bytes, bytes, __ATOMIC_SEQ_CST);
	leave(device);
}

void tally_beyond(int device, uint64_t bytes)
{
	__atomic_fetch_add(&guest_page->tally[device].beyond, bytes, __ATOMIC_RELAXED);
}

/* Of `bytes` that are returned, the part beyond the grant is subtracted first. */
static uint64_t settle_beyond(int device, uint64_t bytes)
{
	uint64_t *beyond = &guest_page->tally[device].beyond, old = __atomic_load_n(beyond, __ATOMIC_RELAXED);

	while (old && !__atomic_compare_exchange_n(beyond, &old, old > bytes ? old - bytes : 0, true, __ATOMIC_RELAXED,
	                                           __ATOMIC_RELAXED))
		;
	return bytes > old ? bytes - old : 0;
}

void tally_return(int device, uint64_t bytes)
{
	uint32_t slot;

	if (__builtin_expect(__atomic_load_n(&guest_page->tally[device].beyond, __ATOMIC_RELAXED) != 0, 0))
		bytes = settle_beyond(device, bytes);
	slot = enter(device, 0);
	sluice_memory_release(guest_page->guest.usage, slot, (uint32_t)device, bytes);
	leave_less(device, bytes);
}

uint64_t tally_charged(int device)
{
	return __atomic_load_n(word_of(device), __ATOMIC_SEQ_CST) & TALLY_BYTES;
}

static void move_device(int device, uint32_t slot)
{
	uint64_t *word = word_of(device), was = __atomic_load_n(word, __ATOMIC_SEQ_CST), now;

	for (int tries = 0;; tries++) {
		if (was % (UINT64_C(1) << TALLY_SLOT_SHIFT) >= INSIDE && tries < MOVE_PATIENCE) {
			sched_yield();
			was = __atomic_load_n(word, __ATOMIC_SEQ_CST);
			continue;
		}
		now = (uint64_t)slot << TALLY_SLOT_SHIFT | was % (UINT64_C(1) << TALLY_SLOT_SHIFT);
		__atomic_store_n(&guest_page->guest.usage->slot[slot].dev[device].charged_bytes, was & TALLY_BYTES,
		                 __ATOMIC_SEQ_CST);
		if (__atomic_compare_exchange_n(word, &was, now, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
			return;
	}
}

void tally_move(uint32_t slot)
{
	for (int device = 0; device < SLUICE_MAX_DEVICES; device++)
		move_device(device, slot);
}

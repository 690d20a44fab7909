/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the counters of the grant's other processes. They are atomics of one writer each, read one by one: a sum of
 * them belongs to no single moment, and its users allow for that.
 */
#include "interpose/compute/timing/siblings.h"

#include <stdlib.h>
#include <string.h>

#include "interpose/compute/rules/fair.h"
#include "interpose/compute/rules/gate.h"
#include "interpose/tenant/guest.h"

struct siblings_book {
	uint32_t looking; /* one thread reads at a time; the others use its last result */
	uint64_t ahead_ns;
	uint64_t largest_ns;
	struct fair_account account[SLUICE_MAX_SLOTS];
	struct fair_reading reading[SLUICE_MAX_SLOTS];
};

static struct siblings_book *books[SLUICE_MAX_DEVICES]; /* published by compare-and-swap, never freed */

/* All slots that may have an owner lie below. */
static uint32_t slots(void)
{
	const struct sluice_guest *guest = guest_self();
	uint32_t high = __atomic_load_n(&guest->policy->control.slot_high, __ATOMIC_RELAXED);
	uint32_t claimed = __atomic_load_n(&guest->usage->header.claim_high, __ATOMIC_RELAXED);

	high = claimed > high ? claimed : high;
	return high < SLUICE_MAX_SLOTS ? high : SLUICE_MAX_SLOTS;
}

static struct fair_reading read_slot(uint32_t slot, int device)
{
	const struct sluice_usage_device *usage = &guest_self()->usage->slot[slot].dev[device];

	/* Read "finished" after "charged": otherwise work charged and done in between would look like more done than
	 * charged. */
	return (struct fair_reading){ .done_ns = __atomic_load_n(&usage->completed_ns, __ATOMIC_RELAXED),
		                      .used_ns = __atomic_load_n(&usage->consumed_ns, __ATOMIC_RELAXED),
		                      .waited_ns = __atomic_load_n(&usage->throttled_ns, __ATOMIC_RELAXED) };
}

bool siblings_exist(void)
{
	return slots() > 1;
}

uint32_t siblings_busy(int device, uint64_t above_ns)
{
	uint32_t busy = 1, high = slots(), self = guest_slot();

	for (uint32_t i = 0; i < high; i++) {
		struct fair_reading r = read_slot(i, device);

		busy += i != self && r.used_ns > gate_add(r.done_ns, above_ns);
	}
	return busy;
}

struct siblings_work siblings_work(int device)
{
	struct siblings_work work = { 0 };
	uint32_t high = slots(), self = guest_slot();

	for (uint32_t i = 0; i < high; i++) {
		struct fair_reading r = read_slot(i, device);

		if (i == self)
			continue;
		work.used_ns += r.used_ns;
		work.done_ns += r.done_ns;
	}
	return work;
}

static struct siblings_book *book_of(int device)
{
	struct siblings_book *book = __atomic_load_n(&books[device], __ATOMIC_ACQUIRE), *made;

	if (book || !(made = calloc(1, sizeof(*made))))
		return book;
	if (__atomic_compare_exchange_n(&books[device], &book, made, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		return made;
	free(made);
	return book;
}

uint64_t siblings_ahead_ns(int device, uint64_t now_ns)
{
	uint32_t high = slots(), self = guest_slot();
	struct siblings_book *book;

	if (high <= 1 || self >= high || !(book = book_of(device)))
		return 0;
	if (__atomic_exchange_n(&book->looking, 1, __ATOMIC_ACQUIRE))
		return __atomic_load_n(&book->ahead_ns, __ATOMIC_RELAXED);
	for (uint32_t i = 0; i < high; i++)
		book->reading[i] = read_slot(i, device);
	uint64_t ahead_ns = fair_look(book->account, book->reading, high, self, now_ns, &book->largest_ns);

	__atomic_store_n(&book->ahead_ns, ahead_ns, __ATOMIC_RELAXED);
	__atomic_store_n(&book->looking, 0, __ATOMIC_RELEASE);
	return ahead_ns;
}

void siblings_forget_parent(void)
{
	for (int i = 0; i < SLUICE_MAX_DEVICES; i++)
		if (books[i])
			memset(books[i], 0, sizeof(*books[i]));
}

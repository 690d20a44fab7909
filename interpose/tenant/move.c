/* SPDX-License-Identifier: Apache-2.0 */
/* When the daemon gives our slot to another process: register again, and move the charges to the new slot. */
#include "interpose/tenant/moves.h"

#include <stdbool.h>

#include "interpose/driver/driver.h"
#include "interpose/tenant/guest.h"
#include "interpose/tenant/guest_page.h"
#include "interpose/tenant/tally.h"

/* The charges first: a process that sees us in the new slot sees our charge there. The daemon zeroes the old one. */
static void move_to(const struct attach_slot *slot)
{
	tally_move(slot->slot);
	guest_introduce(slot);
	__atomic_store_n(&guest_page->slot, slot->slot, __ATOMIC_RELEASE);
	__atomic_store_n(&guest_page->generation, slot->generation, __ATOMIC_RELEASE);
}

/* The daemon was away when we claimed this slot, and has adopted the claim since. */
static bool adopted(const struct sluice_policy_entry *entry, uint64_t known, uint64_t seen)
{
	return !(known & 1) && (seen & 1) &&
	       __atomic_load_n(&entry->starttime, __ATOMIC_RELAXED) == guest_page->identity.starttime &&
	       __atomic_load_n(&entry->ns_pid, __ATOMIC_RELAXED) == guest_page->identity.ns_pid;
}

static void register_again(const struct sluice_policy_entry *entry, uint64_t known, uint64_t seen)
{
	const struct sluice_guest *guest = &guest_page->guest;
	struct attach_region region = { guest->policy, guest->usage };
	struct attach_slot slot;

	if (adopted(entry, known, seen)) {
		__atomic_store_n(&guest_page->generation, seen, __ATOMIC_RELEASE);
		__atomic_store_n(&guest->usage->slot[guest_slot()].generation_seen, seen, __ATOMIC_RELEASE);
	} else if (attach_register(&region, &guest_page->identity, driver_hook_mask, &slot) == 0) {
		move_to(&slot);
	} else {
		/* Keep charging the old slot: others still see it while its generation is odd. Do not retry at every
		 * call. */
		__atomic_store_n(&guest_page->generation, seen, __ATOMIC_RELEASE);
	}
}

/* True if the generation of our slot changed. *ret_known is the value before, *ret_seen the value now. */
static inline bool given_away(const struct guest_page *page, uint64_t *ret_known, uint64_t *ret_seen)
{
	uint32_t slot = __atomic_load_n(&page->slot, __ATOMIC_ACQUIRE);

	*ret_known = __atomic_load_n(&page->generation, __ATOMIC_ACQUIRE);
	*ret_seen = __atomic_load_n(&page->guest.policy->dir[slot].generation, __ATOMIC_ACQUIRE); /* R3 */
	return *ret_known != *ret_seen;
}

void move_if_given_away(void)
{
	struct guest_page *page = guest_page;
	uint64_t known, seen;
	uint32_t idle = 0;

	if (__builtin_expect(!given_away(page, &known, &seen), 1))
		return;
	if (!__atomic_compare_exchange_n(&page->moving, &idle, 1, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
		return; /* another thread is moving us */
	/* read once more, now that no other thread can move us: the values above may belong to two different slots */
	if (given_away(page, &known, &seen))
		register_again(&page->guest.policy->dir[guest_slot()], known, seen);
	__atomic_store_n(&page->moving, 0, __ATOMIC_RELEASE);
}

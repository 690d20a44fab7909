/* SPDX-License-Identifier: Apache-2.0 */
/* Accounts of the GPU time that each process has used: see fair.h. */
#include "interpose/compute/rules/fair.h"

/* Other processes write these counters, with any value: a wild one moves an account by a second at most. */
static int64_t bounded(uint64_t now, uint64_t before)
{
	if (now >= before)
		return now - before > (uint64_t)FAIR_LEAD_NS ? FAIR_LEAD_NS : (int64_t)(now - before);
	return before - now > (uint64_t)FAIR_LEAD_NS ? -FAIR_LEAD_NS : -(int64_t)(before - now);
}

static bool recent(uint64_t when_ns, uint64_t now_ns, uint64_t within_ns)
{
	return when_ns && (when_ns >= now_ns || now_ns - when_ns <= within_ns);
}

static void enter(struct fair_account *a, const struct fair_reading *r, uint64_t now_ns)
{
	bool known = a->moved_ns != 0, waited = r->waited_ns != a->waited_ns;
	bool moved = waited || r->used_ns != a->used_ns || r->used_ns > r->done_ns;

	a->fresh = false;
	if (known)
		a->virtual_ns += bounded(r->used_ns, a->used_ns);
	a->used_ns = r->used_ns;
	a->waited_ns = r->waited_ns;
	if (waited && known)
		a->wanted_ns = now_ns;
	if (!moved)
		return;
	a->fresh = !recent(a->moved_ns, now_ns, FAIR_IDLE_NS);
	a->moved_ns = now_ns;
}

uint64_t fair_look(struct fair_account *accounts, const struct fair_reading *readings, uint32_t count, uint32_t self,
                   uint64_t now_ns, uint64_t *largest_ns)
{
	uint64_t own_before_ns = accounts[self].used_ns;
	int64_t level_ns = 0, lag_ns, ahead_ns = 0;
	bool level = false;

	for (uint32_t i = 0; i < count; i++)
		enter(&accounts[i], &readings[i], now_ns);
	/* The level is the least that any process here before has had. */
	for (uint32_t i = 0; i < count; i++) {
		const struct fair_account *a = &accounts[i];

		if (a->fresh || !recent(a->moved_ns, now_ns, FAIR_IDLE_NS) || (level && a->virtual_ns >= level_ns))
			continue;
		level_ns = a->virtual_ns;
		level = true;
	}
	for (uint32_t i = 0; i < count; i++) {
		struct fair_account *a = &accounts[i];

		if (!a->fresh)
			continue;
		if (a->virtual_ns < level_ns)
			a->virtual_ns = level_ns;
		else if (a->virtual_ns > level_ns + FAIR_LEAD_NS)
			a->virtual_ns = level_ns + FAIR_LEAD_NS;
	}
	if (accounts[self].used_ns > own_before_ns) {
		uint64_t drawn_ns = (uint64_t)bounded(accounts[self].used_ns, own_before_ns);

		*largest_ns -= *largest_ns / FAIR_LARGEST_DECAY;
		if (drawn_ns > *largest_ns)
			*largest_ns = drawn_ns;
	}
	lag_ns = FAIR_LAG_NS + 2 * (int64_t)*largest_ns;
	for (uint32_t i = 0; i < count; i++) {
		struct fair_account *a = &accounts[i];

		if (i == self)
			continue;
		if (a->virtual_ns < accounts[self].virtual_ns - lag_ns)
			a->virtual_ns = accounts[self].virtual_ns - lag_ns;
		if (recent(a->wanted_ns, now_ns, FAIR_WANTS_NS) && accounts[self].virtual_ns - a->virtual_ns > ahead_ns)
			ahead_ns = accounts[self].virtual_ns - a->virtual_ns;
	}
	return (uint64_t)ahead_ns;
}

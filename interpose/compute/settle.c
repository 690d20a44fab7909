/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the time of a record says: what a shape costs, and what the grant has paid too much or too little.
 *
 * Alone on the GPU the time is the cost. In company it is more than that, by as much as the others had; see section 2 of
 * docs/node/throttle.md.
 */
#include "interpose/compute/settle.h"

#include "interpose/compute/rules/gate.h"
#include "interpose/compute/rules/words.h"
#include "interpose/compute/siblings.h"
#include "interpose/tenant/guest.h"

#define SLICE_NS UINT64_C(2000000) /* how long a context runs while another one waits */
#define POLLUTED_TRIES 8           /* then a shape's times are taken as they come */

/* Charge or give back the difference between what ran and what was paid. */
static void correct(int device, const struct sluice_policy_device *policy, uint64_t true_ns, uint64_t paid_ns)
{
	struct sluice_usage_device *usage = guest_usage(device);
	uint32_t ppm = gate_effective_ppm(policy->share_ppm, policy->plan_ppm);

	if (true_ns > paid_ns) {
		add64(guest_shared_tat(device), gate_price_ns(true_ns - paid_ns, ppm));
		add64(&usage->consumed_ns, true_ns - paid_ns);
		add64(&usage->completed_ns, true_ns - paid_ns);
	} else {
		take64(guest_shared_tat(device), gate_price_ns(paid_ns - true_ns, ppm));
		take64(&usage->consumed_ns, paid_ns - true_ns);
		take64(&usage->completed_ns, paid_ns - true_ns);
	}
}

/* A record of one launch says what it costs, one of several like it what each does. */
static void learn(const struct settle_work *work, struct cost_entry *entry, uint64_t own_ns, uint64_t paid_ns)
{
	if (entry && !work->chained)
		cost_learn(entry, own_ns, true);
	else if (entry && !work->mixed && work->cost_ns <= paid_ns)
		cost_learn(entry, gate_part_ns(own_ns, work->cost_ns, paid_ns), true);
}

/* Of a record's time, what no other process of the grant can have taken: they had at most what was charged to them
 * meanwhile, or was charged before and not known to be done. From the host's moments, which lie outside of the
 * events', so the truth is never below it as far as their charges are right. 0 where strangers share the GPU. */
static uint64_t certain_ns(int device, const struct settle_work *work, uint64_t elapsed_ns)
{
	uint64_t used_ns = siblings_work(device).used_ns;

	/* below what was done before: a slot was emptied, or there was nobody */
	return used_ns < work->others_done_ns ? 0 : gate_rest_ns(elapsed_ns, used_ns - work->others_done_ns);
}

/* Who shared the GPU with a record's work, and how sure that is. */
struct company {
	uint32_t contexts; /* with ours */
	uint64_t free_ns;  /* of the time was ours in any case */
	bool strangers;    /* other grants among them */
};

/* Other contexts may have been on the GPU too, in slices. A shape that always takes the same is best known from its lowest
 * time; one that took more than waiting for slices can explain is no such shape, and neither is one whose siblings cannot
 * have filled the rest. */
static void settle_shared(int device, const struct settle_work *work, const struct sluice_policy_device *policy,
                          struct cost_entry *entry, uint64_t elapsed_ns, const struct company *with)
{
	uint64_t paid_ns = work->chained ? work->paid_ns : work->cost_ns;
	uint64_t free_ns = !work->chained && with->free_ns < SLICE_NS ? SLICE_NS : with->free_ns;
	uint64_t own_ns = gate_own_ns(elapsed_ns, free_ns, with->contexts);
	uint64_t least_ns = with->strangers ? 0 : certain_ns(device, work, elapsed_ns);

	if (own_ns < least_ns)
		own_ns = least_ns;
	if (elapsed_ns > gate_sliced_ns(paid_ns, SLICE_NS, with->contexts) || least_ns > paid_ns ||
	    (entry && __atomic_load_n(&entry->wary, __ATOMIC_RELAXED))) {
		learn(work, entry, own_ns, paid_ns);
		correct(device, policy, own_ns, paid_ns);
		return;
	}
	if (work->chained)
		return;
	if (entry) {
		bool first = work->sole && !__atomic_load_n(&entry->cost_ns, __ATOMIC_RELAXED);

		cost_learn(entry, first ? own_ns : elapsed_ns, false);
	}
	if (paid_ns <= COST_DEFAULT_NS)
		correct(device, policy, own_ns, paid_ns);
}

/* Was this launch's call loading something? Its time is thrown away, but not for ever: some shapes are like that. */
static bool polluted(const struct settle_work *work, const struct cost_entry *entry, uint64_t elapsed_ns)
{
	return !work->chained && work->host_ns > SETTLE_LOADING_NS && work->host_ns > elapsed_ns / 4 && entry &&
	       __atomic_load_n(&entry->tries, __ATOMIC_RELAXED) < POLLUTED_TRIES;
}

void settle_work(int device, const struct settle_work *work, struct cost_entry *entry, uint64_t elapsed_ns)
{
	struct sluice_policy_device policy;
	uint64_t paid_ns = work->chained ? work->paid_ns : work->cost_ns;

	if (polluted(work, entry, elapsed_ns))
		return;
	guest_read_device(device, &policy);

	/* Alone if nobody else was planned on the GPU at the launch, and still is not, or inside our own window. */
	bool in_window = work->own_ns != UINT64_MAX;
	bool alone = work->placed && (in_window || work->contention == (uint32_t)policy.contention_epoch);
	uint32_t now_busy = work->sole ? 1 : siblings_busy(device, 0);
	uint32_t busy = work->busy > now_busy ? work->busy : now_busy;
	uint32_t strangers = policy.active_grants > 1 ? policy.active_grants - 1 : 0;
	uint64_t free_ns = alone ? work->own_ns : 0;

	/* A neighbour's last launch may run on into our window: then the time is ours only as far as it is likely. */
	uint64_t likely_ns = work->chained ? 2 * paid_ns : paid_ns + paid_ns / 16;

	if (busy > 1 || elapsed_ns > free_ns || (strangers && elapsed_ns > likely_ns)) {
		struct company with = { .contexts = busy + strangers,
			                .free_ns = busy > 1 ? 0 : free_ns,
			                .strangers = strangers > 0 };

		settle_shared(device, work, &policy, entry, elapsed_ns, &with);
		return;
	}
	learn(work, entry, elapsed_ns, paid_ns);
	correct(device, &policy, elapsed_ns, paid_ns);
}

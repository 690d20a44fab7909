/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What follows from the time of a record: the cost of a shape, and how much the grant has paid too much or too little.
 *
 * Alone on the GPU the time is the cost. Beside other processes it exceeds the cost by their part; see section 2 of
 * docs/node/throttle.md.
 */
#include "interpose/compute/timing/settle.h"

#include "interpose/compute/rules/gate.h"
#include "interpose/compute/rules/words.h"
#include "interpose/compute/timing/siblings.h"
#include "interpose/tenant/guest.h"

#define SLICE_NS UINT64_C(2000000) /* how long a context runs while another one waits */
#define POLLUTED_TRIES 8           /* after so many shared tries, a shape's times are used as measured */

/* Charge or return the difference between the time that ran and the time that was paid. */
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

/* A record of one launch gives its cost, one of several similar launches the cost of each. What is learnt about a new
 * shape is learnt about its function too. */
static void learn(const struct settle_work *work, struct cost_entry *entry, uint64_t own_ns, uint64_t paid_ns)
{
	uint64_t sample_ns = work->chained ? gate_part_ns(own_ns, work->cost_ns, paid_ns) : own_ns;

	if (!entry || (work->chained && (work->mixed || work->cost_ns > paid_ns)))
		return;
	if (__atomic_load_n(&entry->samples, __ATOMIC_RELAXED) < COST_SAMPLE_FIRST)
		kin_learn(&work->kin, sample_ns);
	cost_learn(entry, sample_ns, true);
}

/* The part of a record's time that no other process of the grant can have taken: the others had at most the time
 * charged to them meanwhile, or charged before and not known to be done. Read at host moments, which enclose the
 * events, so the result is never below the truth as far as the charges of the others are right. 0 where other grants
 * share the GPU. */
static uint64_t certain_ns(int device, const struct settle_work *work, uint64_t elapsed_ns)
{
	uint64_t used_ns = siblings_work(device).used_ns;

	/* below the value before: a slot was zeroed, or there was no other process */
	return used_ns < work->others_done_ns ? 0 : gate_rest_ns(elapsed_ns, used_ns - work->others_done_ns);
}

/* The processes that shared the GPU with a record's work, and the certainty of that. */
struct company {
	uint32_t contexts; /* contexts, ours included */
	uint64_t free_ns;  /* the part of the time that was certainly ours */
	bool strangers;    /* contexts of other grants among them */
};

/* Other contexts may have been on the GPU too, in slices. For a shape of constant cost the lowest time is the best
 * estimate; a time that slices cannot explain means that the cost varies, and so does a time that the siblings' charges
 * cannot fill. */
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
	if (work->lent && (!work->chained || work->cost_ns >= work->paid_ns))
		kin_learn_shared(&work->kin, own_ns);
	if (work->chained)
		return;
	if (entry) {
		bool first = work->sole && (!__atomic_load_n(&entry->cost_ns, __ATOMIC_RELAXED) || cost_is_lent(entry));

		cost_learn(entry, first ? own_ns : elapsed_ns, false);
	}
	if (paid_ns <= COST_DEFAULT_NS || work->lent)
		correct(device, policy, own_ns, paid_ns);
}

static struct gate_arrival arrivals[SLUICE_MAX_DEVICES]; /* a lost update costs one sample */

/* The part of the time that was ours where a neighbour's last launch may have run on into our window. */
static uint64_t arrived_ns(int device, uint64_t elapsed_ns, uint64_t paid_ns)
{
	struct gate_arrival *sums = &arrivals[device];
	struct gate_arrival now = { __atomic_load_n(&sums->elapsed_ns, __ATOMIC_RELAXED),
		                    __atomic_load_n(&sums->paid_ns, __ATOMIC_RELAXED) };

	now = gate_arrival_after(now, elapsed_ns, paid_ns);
	__atomic_store_n(&sums->elapsed_ns, now.elapsed_ns, __ATOMIC_RELAXED);
	__atomic_store_n(&sums->paid_ns, now.paid_ns, __ATOMIC_RELAXED);
	return gate_arrival_own_ns(now, elapsed_ns);
}

/* Did the launch call load something? Its time is discarded, but not for ever: some shapes always take so long. */
static bool polluted(const struct settle_work *work, const struct cost_entry *entry, uint64_t elapsed_ns)
{
	uint32_t tries = entry ? __atomic_load_n(&entry->tries, __ATOMIC_RELAXED) : UINT32_MAX;

	return !work->chained && work->host_ns > SETTLE_LOADING_NS && work->host_ns > elapsed_ns / 4 &&
	       tries < (work->lent ? 2 * POLLUTED_TRIES : POLLUTED_TRIES);
}

void settle_work(int device, const struct settle_work *work, struct cost_entry *entry, uint64_t elapsed_ns)
{
	struct sluice_policy_device policy;
	uint64_t paid_ns = work->chained ? work->paid_ns : work->cost_ns;

	if (polluted(work, entry, elapsed_ns))
		return;
	guest_read_device(device, &policy);

	/* Alone if no other grant was planned on the GPU at the launch, and none is now, or inside our own window. */
	bool in_window = work->own_ns != UINT64_MAX;
	bool alone = work->placed && (in_window || work->contention == (uint32_t)policy.contention_epoch);
	uint32_t now_busy = work->sole ? 1 : siblings_busy(device, 0);
	uint32_t busy = work->busy > now_busy ? work->busy : now_busy;
	uint32_t strangers = policy.active_grants > 1 ? policy.active_grants - 1 : 0;
	uint64_t free_ns = alone ? work->own_ns : 0;

	/* Nothing is learned from such a time: the price is what it is compared with. */
	if (strangers && busy <= 1 && work->early && entry && __atomic_load_n(&entry->wary, __ATOMIC_RELAXED)) {
		uint64_t own_ns = gate_own_ns(elapsed_ns, free_ns, 1 + strangers);

		correct(device, &policy, arrived_ns(device, own_ns, paid_ns), paid_ns);
		return;
	}

	/* A neighbour's last launch may run on into our window: then the time counts as ours only as far as that is
	 * likely. */
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

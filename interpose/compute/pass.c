/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The waiting around gate.h: pay, look, wait, and look again.
 *
 * Each round reads the limits and the plan again, because they change while a thread waits. Paying comes first: it
 * takes a place on the grant's clock, in order of arrival. Then the clock (cap), the work already queued (queue) and
 * the grant's window (turn) each give the time still to wait, 0 = go.
 */
#include "interpose/compute/pass.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "nativecommon/clock.h"
#include "interpose/compute/pipe.h"
#include "interpose/compute/rules/gate.h"
#include "interpose/compute/rules/words.h"
#include "interpose/compute/timing/siblings.h"
#include "interpose/tenant/capture.h"
#include "interpose/tenant/guest.h"

#define WAIT_MAX_NS UINT64_C(10000000) /* every wait checks again after 10 ms */
/* while work is timed beside siblings: a late query of its end adds an error to its time */
#define TIMED_MAX_NS UINT64_C(1000000)
#define SPIN_NS UINT64_C(3000)                  /* shorter waits are not worth a system call */
#define LATE_WAKE_NS UINT64_C(60000)            /* default timer slack and a wake-up */
#define DEFER_MIN_NS UINT64_C(100000)           /* no need to check more often whether a sibling has caught up */
#define STALL_PATIENCE_NS UINT64_C(10000000000) /* for work that has begun, as far as can be known, and does not end */
#define CHUNK_ALONE_NS UINT64_C(1000000)
#define DAEMON_SILENT_NS UINT64_C(2000000000) /* after that the plan's turns are ignored, the own cap is not */

static void spin_until(uint64_t end_ns)
{
	while (clock_ns() < end_ns)
		sched_yield();
}

/* `punctual`: a late start would waste the GPU (our window has begun). A sleep ends some 60 us late, so it ends earlier
 * by that much and the rest is spent yielding; once per period that is affordable. Being late at the cap costs nothing:
 * the virtual clock lets us catch up. */
static void wait_for(const struct sluice_policy *policy, uint32_t wake, uint64_t wait_ns, uint64_t now_ns,
                     bool punctual)
{
	if (wait_ns <= (punctual ? LATE_WAKE_NS : SPIN_NS)) {
		spin_until(now_ns + wait_ns);
		return;
	}
	if (punctual)
		wait_ns -= LATE_WAKE_NS;
	if (wait_ns > WAIT_MAX_NS)
		wait_ns = WAIT_MAX_NS;
	struct timespec timeout = { .tv_sec = 0, .tv_nsec = (long)wait_ns };

	/* R5. A changed word, a signal and the timeout have the same effect: check again. */
	syscall(SYS_futex, &policy->control.wake, FUTEX_WAIT, wake, &timeout, NULL, 0);
}

/* The time since which a full queue has not moved although all charged work should be over. */
struct stall {
	uint64_t since_ns;
	uint32_t outstanding;
};

/* One thread at the gate: what it has drawn, and its observations in this round. */
struct attempt {
	/* kept between rounds */
	bool drawn; /* it has a place on the clock: */
	uint32_t ppm;
	uint64_t tat_ns; /* the clock before it */
	uint64_t price_ns;
	struct stall stall;
	uint32_t seen; /* outstanding records in the last round, and when their number changed */
	uint64_t moved_ns;
	/* of this round */
	uint64_t now_ns;
	struct sluice_policy_device policy;
	bool planned;         /* the plan is recent enough to follow */
	uint32_t outstanding; /* outstanding records of the own context */
	uint32_t processes;   /* processes of the grant that share what may be queued */
	uint32_t contexts;    /* contexts of this process, likewise */
	uint64_t queued_ns;
	uint64_t expected_ns; /* its time still to come if no other process used the GPU */
	bool turned;          /* it has waited for a window to begin (kept between rounds) */
	bool punctual;        /* the wait ends with our window: a late start would waste it */
};

static bool plan_is_fresh(uint64_t now_ns)
{
	return now_ns < gate_add(__atomic_load_n(&guest_self()->policy->control.heartbeat_ns, __ATOMIC_RELAXED),
	                         DAEMON_SILENT_NS);
}

static struct gate_window window_of(const struct sluice_policy_device *policy)
{
	return (struct gate_window){ policy->lease_origin_ns, policy->lease_period_ns, policy->lease_quantum_ns,
		                     policy->switch_ns };
}

static bool in_windows(const struct sluice_policy_device *policy, bool planned, const struct gate_window *window)
{
	return planned && policy->turn_mode == SLUICE_TURN_LEASE && gate_window_valid(window);
}

static uint32_t ppm_of(const struct sluice_policy_device *policy, bool planned)
{
	return policy->flags & SLUICE_FLAG_ENFORCE_SM
	               ? gate_effective_ppm(policy->share_ppm, planned ? policy->plan_ppm : 0)
	               : 0;
}

/* No other process of the grant, and no other grant at work on the GPU. */
static bool is_alone(const struct sluice_policy_device *policy, bool planned)
{
	return planned && policy->active_grants <= 1 &&
	       __atomic_load_n(&guest_self()->policy->control.live_slots, __ATOMIC_RELAXED) <= 1;
}

bool pass_is_free(int device)
{
	struct sluice_policy_device policy;
	bool planned = plan_is_fresh(clock_ns());

	guest_read_device(device, &policy);
	uint32_t ppm = ppm_of(&policy, planned);

	return planned && policy.active_grants <= 1 && !(policy.flags & (SLUICE_FLAG_PAUSED | SLUICE_FLAG_REVOKED)) &&
	       (ppm == 0 || ppm >= GATE_PPM);
}

/* Other users that may be on the GPU now. */
static void look_around(struct pass_ask *ask, const struct sluice_policy_device *policy, bool planned, uint64_t now_ns)
{
	struct gate_window window = window_of(policy);
	bool windows = in_windows(policy, planned, &window);

	ask->begins_ns = windows ? gate_window_begins_ns(&window, now_ns) : now_ns;
	ask->window_left_ns = windows ? gate_window_left_ns(&window, now_ns) : UINT64_MAX;
	ask->window_ns = windows ? window.quantum_ns : 0;
	ask->contention = (uint32_t)policy->contention_epoch;
	ask->sole = __atomic_load_n(&guest_self()->policy->control.live_slots, __ATOMIC_RELAXED) <= 1;
	ask->placed = policy->active_grants <= 1 || (windows && ask->window_left_ns > 0);
	ask->alone = is_alone(policy, planned);
}

void pass_look_around(struct pass_ask *ask)
{
	struct sluice_policy_device policy;
	uint64_t now_ns = clock_ns();

	guest_read_device(ask->device, &policy);
	look_around(ask, &policy, plan_is_fresh(now_ns), now_ns);
}

/* --- pay ---------------------------------------------------------------------------------------------------------- */

/* Wall time by which the clock may run ahead now. */
static uint64_t burst_ns(const struct attempt *at)
{
	struct gate_window window = window_of(&at->policy);

	return gate_burst_ns(at->policy.burst_ns, in_windows(&at->policy, at->planned, &window) ? window.period_ns : 0);
}

/* Time to wait before a place on the grant's clock may be taken, because a sibling goes first; see fair.h. A lead of
 * about one launch is not worth a wait. */
static uint64_t defer_ns(const struct pass_ask *ask, const struct attempt *at, uint32_t ppm)
{
	uint64_t ahead_ns = siblings_ahead_ns(ask->device, at->now_ns);

	if (ppm == 0 || ahead_ns <= at->policy.chunk_ns)
		return 0;
	ahead_ns -= at->policy.chunk_ns;
	uint64_t wait_ns = gate_cap_wait_ns(__atomic_load_n(guest_shared_tat(ask->device), __ATOMIC_RELAXED),
	                                    at->now_ns, gate_tolerance_ns(burst_ns(at), ahead_ns));
	uint64_t caught_up_ns = gate_price_ns(ahead_ns, ppm); /* at the earliest */

	wait_ns = wait_ns < caught_up_ns ? wait_ns : caught_up_ns;
	return wait_ns == 0 || wait_ns > DEFER_MIN_NS ? wait_ns : DEFER_MIN_NS;
}

static void give_place_back(const struct pass_ask *ask, struct attempt *at)
{
	if (at->drawn)
		take64(guest_shared_tat(ask->device), at->price_ns);
	at->drawn = false;
}

static void take_place(struct pass_ask *ask, struct attempt *at, uint32_t ppm, int64_t credit_ns, uint64_t chance)
{
	uint64_t need_ns = credit_ns < (int64_t)ask->cost_ns ? (uint64_t)((int64_t)ask->cost_ns - credit_ns) : 0;

	/* Chunks of one length would fall into step with a program's own pattern, and the launch that starts one, which
	 * may be timed, would always be the same. */
	uint64_t chunk_ns = at->policy.chunk_ns / 2 + at->policy.chunk_ns / 2 * chance / 65536;

	ask->paid_ns = need_ns == 0 ? 0 : need_ns > chunk_ns ? need_ns : chunk_ns;
	at->ppm = ppm;
	at->price_ns = gate_price_ns(ask->paid_ns, ppm);
	at->tat_ns = draw(guest_shared_tat(ask->device), at->now_ns, at->price_ns);
	at->drawn = true;
}

/* Take a place on the clock, unless there is one at the current price. Returns how long a sibling goes first. */
static uint64_t pay(struct pass_ask *ask, struct attempt *at, int64_t credit_ns, uint64_t chance)
{
	uint32_t ppm = ppm_of(&at->policy, at->planned);
	uint64_t defer = at->drawn ? 0 : defer_ns(ask, at, ppm);

	if (at->drawn && at->ppm != ppm) /* resized during the wait: take another place, at the new price */
		give_place_back(ask, at);
	if (!at->drawn && !defer)
		take_place(ask, at, ppm, credit_ns, chance);
	return defer;
}

/* --- look --------------------------------------------------------------------------------------------------------- */

/* True if the wait for a full queue must end: its work takes longer than any estimate, or has not begun and waits
 * for something that this thread may have to do next. */
static bool stalled(const struct pass_ask *ask, struct attempt *at)
{
	struct stall *stall = &at->stall;

	if (at->expected_ns || at->outstanding != stall->outstanding || !stall->since_ns) {
		*stall = (struct stall){ .since_ns = at->now_ns, .outstanding = at->outstanding };
		return false;
	}
	uint64_t waited_ns = at->now_ns - stall->since_ns;

	return waited_ns > STALL_PATIENCE_NS || (waited_ns > PIPE_HELD_PATIENCE_NS && pipe_held(ask->pipe));
}

/* This context's part of the work that the grant may have queued on the device: equal parts for its active processes,
 * and for the contexts of each. */
static uint64_t bound_ns(const struct pass_ask *ask, const struct attempt *at)
{
	return ask->proven ? at->policy.inflight_ns / at->processes / at->contexts : 0;
}

static uint64_t turn_wait_ns(const struct pass_ask *ask, struct attempt *at)
{
	struct gate_window window = window_of(&at->policy);
	uint64_t wait_ns, queued_ns;

	if (!in_windows(&at->policy, at->planned, &window))
		return 0;
	queued_ns = ask->pipe ? pipe_honest_ns(ask->pipe, at->now_ns, window.period_ns) : 0;
	wait_ns = gate_turn_wait_ns(&window, at->now_ns, queued_ns, ask->cost_ns);
	/* a queue of guessed length may be over while there is still time in this window */
	if (wait_ns && ask->guessed && at->outstanding && !gate_turn_wait_ns(&window, at->now_ns, 0, ask->cost_ns))
		return gate_guess_wait_ns(wait_ns, at->now_ns - at->moved_ns);
	at->punctual = wait_ns > 0;
	at->turned = at->turned || at->punctual;
	return wait_ns;
}

static uint64_t queue_wait_ns(const struct pass_ask *ask, struct attempt *at)
{
	uint64_t bound = bound_ns(ask, at);

	if (!gate_queue_full(at->queued_ns, ask->cost_ns, bound, at->outstanding) || stalled(ask, at))
		return 0;
	uint64_t wait_ns = gate_queue_wait_ns(at->queued_ns, ask->cost_ns, bound);

	return ask->guessed ? gate_guess_wait_ns(wait_ns, at->now_ns - at->moved_ns) : wait_ns;
}

/* Other grants may be on the GPU at any time, in the hardware's slices. */
static bool sliced(const struct attempt *at)
{
	struct gate_window window = window_of(&at->policy);

	return at->planned && at->policy.active_grants > 1 && !in_windows(&at->policy, at->planned, &window);
}

/* The queued work, and the processes that share the bound on it. A process with no more in flight than a thread's
 * unused credit does not count: with a part for each idle process, a busy one would have next to nothing. With other
 * processes on the GPU the finished part of the queue is unknown, so all work counts that is not known to be done. */
static void look_at_queue(const struct pass_ask *ask, struct attempt *at, bool thorough)
{
	at->queued_ns = at->expected_ns = 0;
	at->outstanding = 0;
	at->processes = at->contexts = 1;
	if (!ask->pipe)
		return;
	if (thorough || siblings_exist())
		pipe_reap(ask->pipe);
	else
		pipe_reap_due(ask->pipe, at->now_ns);
	if (siblings_exist())
		at->processes = siblings_busy(ask->device, at->policy.chunk_ns);
	at->contexts = pipe_contexts(ask->pipe);
	at->outstanding = pipe_outstanding(ask->pipe);
	if (!at->moved_ns || at->outstanding != at->seen)
		at->moved_ns = at->now_ns;
	at->seen = at->outstanding;
	at->expected_ns = pipe_expected_ns(ask->pipe, at->now_ns);
	at->queued_ns = at->processes * at->contexts > 1 || sliced(at) ? pipe_inflight_ns(ask->pipe) : at->expected_ns;
}

/* Time that the launch has to wait at present; 0 = go. `thorough`: query the driver for each record. */
static uint64_t look_once(struct pass_ask *ask, struct attempt *at, uint64_t defer, bool thorough)
{
	uint64_t wait_ns = defer;

	at->punctual = false;
	look_at_queue(ask, at, thorough);
	if (at->policy.flags & SLUICE_FLAG_PAUSED)
		wait_ns = WAIT_MAX_NS;
	else if (at->drawn && at->ppm)
		wait_ns = gate_cap_wait_ns(at->tat_ns, at->now_ns, burst_ns(at));
	if (!wait_ns)
		wait_ns = turn_wait_ns(ask, at);
	if (!wait_ns)
		wait_ns = queue_wait_ns(ask, at);
	if (at->outstanding && wait_ns > TIMED_MAX_NS && !at->punctual && siblings_exist())
		wait_ns = TIMED_MAX_NS;
	return wait_ns;
}

/* By the clock alone the queue may look longer than it is, so no launch waits without a query. */
static uint64_t look(struct pass_ask *ask, struct attempt *at, uint64_t defer)
{
	return look_once(ask, at, defer, false) ? look_once(ask, at, defer, true) : 0;
}

/* --- wait --------------------------------------------------------------------------------------------------------- */

static void wait_and_account(struct pass_ask *ask, struct attempt *at, uint32_t wake, uint64_t wait_ns)
{
	uint64_t began_ns = at->now_ns;

	capture_wait();
	wait_for(guest_self()->policy, wake, wait_ns, began_ns, at->punctual);
	at->now_ns = clock_ns();
	guest_heartbeat(at->now_ns);
	add64(&guest_usage(ask->device)->throttled_ns, at->now_ns - began_ns);
	ask->waited_ns += at->now_ns - began_ns;
}

/* While no other grant is active a thread draws more at once: no other waits for what it leaves unused. A capped
 * grant pays at most CHUNK_ALONE_NS of its clock for it. */
static uint64_t chunk_ns(const struct sluice_policy_device *policy, bool planned)
{
	uint32_t ppm = ppm_of(policy, planned);
	uint64_t alone_ns = ppm && ppm < GATE_PPM ? CHUNK_ALONE_NS * ppm / GATE_PPM : CHUNK_ALONE_NS;

	return is_alone(policy, planned) && alone_ns > policy->chunk_ns ? alone_ns : policy->chunk_ns;
}

CUresult pass_gate(struct pass_ask *ask, int64_t *credit_ns, uint64_t chance)
{
	const struct sluice_policy *policy = guest_self()->policy;
	struct attempt at = { 0 };
	bool waits = false;

	clock_follow(__atomic_load_n(&policy->control.heartbeat_ns, __ATOMIC_RELAXED));
	at.now_ns = clock_ns();
	for (;;) {
		uint32_t wake = __atomic_load_n(&policy->control.wake, __ATOMIC_ACQUIRE); /* R5: before the checks */

		guest_read_device(ask->device, &at.policy);
		at.planned = plan_is_fresh(at.now_ns);
		at.policy.chunk_ns = chunk_ns(&at.policy, at.planned);
		if (at.policy.flags & SLUICE_FLAG_REVOKED) {
			give_place_back(ask, &at);
			if (waits)
				guest_waits(-1);
			return CUDA_ERROR_SYSTEM_NOT_READY;
		}
		uint64_t wait_ns = look(ask, &at, pay(ask, &at, *credit_ns, chance));

		if (!wait_ns)
			break;
		if (!waits)
			guest_waits(1);
		waits = true;
		wait_and_account(ask, &at, wake, wait_ns);
	}
	if (waits)
		guest_waits(-1);
	look_around(ask, &at.policy, at.planned, at.now_ns);
	ask->arrived = at.turned && !at.outstanding && ask->window_left_ns > ask->window_ns - ask->window_ns / 4;
	*credit_ns += (int64_t)ask->paid_ns - (int64_t)ask->cost_ns;
	add64(&guest_usage(ask->device)->consumed_ns, ask->paid_ns);
	guest_heartbeat(at.now_ns);
	return CUDA_SUCCESS;
}

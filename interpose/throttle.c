/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shell around gate.h: a thread's credit, and waiting for cap, queue and turn. What happens to work once it is queued
 * is pipe.c; docs/throttle.md tells the algorithm as a whole.
 */
#include "interpose/throttle.h"

#include <assert.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "interpose/driver.h"
#include "interpose/gate.h"
#include "interpose/guest.h"
#include "interpose/pipe.h"
#include "interpose/siblings.h"
#include "interpose/words.h"

#define WAIT_MAX_NS UINT64_C(10000000) /* every wait looks again after 10 ms */
#define TIMED_MAX_NS                                                                                                   \
	UINT64_C(1000000)      /* while work is timed beside siblings: how late its end is seen is a doubt about it */
#define SPIN_NS UINT64_C(3000) /* shorter waits are not worth a system call */
#define LATE_WAKE_NS UINT64_C(60000)            /* default timer slack and a wake-up */
#define DEFER_MIN_NS UINT64_C(100000)           /* no use in asking more often whether a sibling has caught up */
#define STALL_PATIENCE_NS UINT64_C(10000000000) /* for work that has begun, as far as can be told, and does not end */
#define DAEMON_SILENT_NS UINT64_C(2000000000)   /* then turns are no longer believed, the own cap is */

/*
 * The shapes a thread has launched lately, for programs that alternate between them, as every framework does. Two ways to a
 * set: of 16 shapes nearly all find a place, and one that does not takes the long way.
 */
#define WAY_SETS 64
#define WAYS 2

struct throttle_lane {
	int device;
	struct throttle_pipe *pipe;
	int64_t seen_ns; /* the thread's credit when its use was last reported */
	uint64_t key;    /* of the last launch */
	bool mixed;      /* launches of other keys since the last record */
	uint32_t random;
	struct throttle_way way[WAY_SETS][WAYS];
};

__thread struct throttle_local throttle_local __attribute__((tls_model("initial-exec")));

static pthread_key_t lane_key;
static pthread_once_t lane_once = PTHREAD_ONCE_INIT;

/* --- thread-local state ---------------------------------------------------------------------------------------- */

/* The upper halves are folded in before the multiplication, which would lose them. */
static inline unsigned way_set(const void *function, const struct cost_shape *shape)
{
	uint64_t h = (uint64_t)(uintptr_t)function + ((uint64_t)shape->grid[0] << 32 | shape->block[0]);

	h ^= ((uint64_t)shape->grid[1] << 32 | shape->shared_bytes) + ((uint64_t)shape->grid[2] << 16);
	h ^= h >> 29;
	return (unsigned)(h * UINT64_C(0x9e3779b97f4a7c15) >> 58);
}

static_assert(WAY_SETS == 1 << (64 - 58), "way_set() gives as many");

/* The last launch was of this shape. */
static void follow(struct throttle_local *local, struct throttle_way *way)
{
	if (local->last && local->last->next != way)
		local->last->next = way;
}

/* Most recent first: the other one of the set is what goes. Pointers to either stay good, and say something else. */
static void remember(struct throttle_local *local, const void *function, const struct cost_shape *shape, uint64_t key,
                     struct cost_entry *entry)
{
	struct throttle_way *set = local->lane->way[way_set(function, shape)];

	if (set[0].function != function || !throttle_same_shape(&set[0].shape, shape)) {
		if (set[0].function)
			set[1] = set[0];
		set[0] = (struct throttle_way){ .function = function, .shape = *shape };
	}
	set[0].key = key;
	set[0].entry = entry;
	follow(local, set);
	local->last = set;
	local->expected = set->next;
}

struct throttle_way *throttle_recall(struct throttle_local *local, const void *function, const struct cost_shape *shape)
{
	struct throttle_way *way;

	if (!local->ways || !function) /* NULL is the driver's to refuse */
		return NULL;
	way = &local->ways[WAYS * way_set(function, shape)];
	if (way->function != function || !throttle_same_shape(&way->shape, shape))
		way++;
	if (way->function != function || !throttle_same_shape(&way->shape, shape))
		return NULL;
	follow(local, way);
	return way;
}

static void flush_launches(struct throttle_local *local)
{
	if (local->launches && local->lane && guest_self()) {
		add64(&guest_usage(local->lane->device)->launches, local->launches);
		local->launches = 0;
	}
}

/* The launch path only takes from the credit. What it took since the last look is work handed to the driver; credit
 * itself is in no queue. Without a pipe nobody will hear when it is done, so it counts as done: a grant that looks busy
 * for ever costs its neighbours more. */
static void report_use(struct throttle_local *local)
{
	struct throttle_lane *lane = local->lane;
	int64_t used_ns = lane->seen_ns - local->credit_ns; /* negative after launches that failed */

	lane->seen_ns = local->credit_ns;
	if (lane->pipe)
		pipe_mark(lane->pipe, used_ns, lane);
	else if (used_ns > 0 && guest_self())
		add64(&guest_usage(lane->device)->completed_ns, (uint64_t)used_ns);
}

/* Hand unused credit back, so that a thread that ends or changes devices hoards nothing. */
static void return_credit(struct throttle_local *local)
{
	if (local->lane)
		report_use(local);
	if (local->credit_ns > 0 && local->lane && guest_self()) {
		struct sluice_policy_device policy;
		uint64_t unused_ns = (uint64_t)local->credit_ns;

		guest_read_device(local->lane->device, &policy);
		take64(shared_tat(local->lane->device),
		       gate_price_ns(unused_ns, gate_effective_ppm(policy.share_ppm, policy.plan_ppm)));
		take64(&guest_usage(local->lane->device)->consumed_ns, unused_ns);
	}
	local->credit_ns = 0;
	if (local->lane)
		local->lane->seen_ns = 0;
}

static void lane_gone(void *value)
{
	struct throttle_local *local = &throttle_local;

	local->expected = local->last = NULL;
	if (local->lane == value) {
		flush_launches(local);
		return_credit(local);
		local->lane = NULL;
		local->ways = NULL;
	}
	free(value);
}

static void lane_key_make(void)
{
	pthread_key_create(&lane_key, lane_gone);
}

/* What stays the same from launch to launch. */
static void name_event(struct throttle_local *local, int device)
{
	const uint8_t *uuid = guest_self()->policy->header.grant_uuid;

	local->event.grant = 0;
	for (int i = 0; i < 8; i++)
		local->event.grant = local->event.grant << 8 | uuid[i];
	local->event.device = (uint32_t)device;
}

static struct throttle_lane *lane_for(struct throttle_local *local, int device)
{
	if (!local->lane) {
		pthread_once(&lane_once, lane_key_make);
		local->lane = aligned_alloc(_Alignof(struct throttle_lane), sizeof(*local->lane));
		if (!local->lane)
			return NULL;
		memset(local->lane, 0, sizeof(*local->lane));
		local->lane->device = device;
		pthread_setspecific(lane_key, local->lane);
		name_event(local, device);
	}
	if (local->lane->device != device) {
		flush_launches(local);
		return_credit(local);
		local->lane->device = device;
		local->lane->pipe = NULL;
		memset(local->lane->way, 0, sizeof(local->lane->way));
		local->expected = local->last = NULL;
		name_event(local, device);
	}
	local->ways = &local->lane->way[0][0];
	return local->lane;
}

static struct throttle_pipe *lane_pipe(struct throttle_lane *lane)
{
	if (!lane->pipe) {
		lane->pipe = pipe_of_current(lane->device);
	}
	return lane->pipe;
}

void throttle_forget_local(void)
{
	throttle_local.expected = throttle_local.last = NULL;
	throttle_local.ways = NULL;
	if (throttle_local.lane && throttle_local.lane->pipe) {
		report_use(&throttle_local);
		throttle_local.lane->pipe = NULL;
	}
}

void throttle_context_gone(uint32_t tag)
{
	flush_launches(&throttle_local);
	throttle_forget_local();
	pipe_context_gone(tag);
}

/* While attaching, guest_self() is NULL: no other thread is in here. */
void throttle_forget_parent(void)
{
	throttle_forget_all();
	throttle_local.credit_ns = 0; /* drawn by the parent, which still has it */
	throttle_local.launches = 0;
	if (throttle_local.lane)
		throttle_local.lane->seen_ns = 0;
	pipe_forget_parent();
	siblings_forget_parent();
}

void throttle_forget_all(void)
{
	throttle_forget_local();
	cost_relearn_all();
}

/* Our own event calls must not disturb a capture that another thread has going in global mode. */
static CUstreamCaptureMode relax_capture(void)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;

	if (driver.cuThreadExchangeStreamCaptureMode)
		driver.cuThreadExchangeStreamCaptureMode(&mode);
	return mode;
}

static void restore_capture(CUstreamCaptureMode mode)
{
	if (driver.cuThreadExchangeStreamCaptureMode)
		driver.cuThreadExchangeStreamCaptureMode(&mode);
}

/* A stream being captured runs nothing: charge nothing, record nothing. An error here (the legacy stream while
 * another one is captured) means the same. */
static bool capturing(CUstream stream)
{
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;

	if (!driver.cuStreamIsCapturing)
		return false;
	return driver.cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* --- waiting --------------------------------------------------------------------------------------------------- */

static void spin_until(uint64_t end_ns)
{
	while (clock_ns() < end_ns)
		sched_yield();
}

/* `punctual`: a late start would waste the GPU (our window has begun). A sleep ends some 60 us late, so it is cut short
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

	/* R5. A changed word, a signal and the timeout are all the same to us: look again. */
	syscall(SYS_futex, &policy->control.wake, FUTEX_WAIT, wake, &timeout, NULL, 0);
}

struct ask {
	struct throttle_pipe *pipe;
	int device;
	bool proven; /* its cost was seen often enough to queue by it */
	uint64_t cost_ns;
	uint64_t paid_ns;   /* out: drawn from the grant */
	uint64_t waited_ns; /* out */
	/* out: the situation at the launch, as in pipe_launch */
	uint64_t window_left_ns;
	uint32_t contention;
	bool placed, sole;
};

/* Who else may be on the GPU now. */
static void look_around(struct ask *ask, const struct sluice_policy_device *policy, bool planned, uint64_t now_ns)
{
	struct gate_window window = { policy->lease_origin_ns, policy->lease_period_ns, policy->lease_quantum_ns };
	bool windows = planned && policy->turn_mode == SLUICE_TURN_LEASE && gate_window_valid(&window);

	ask->window_left_ns = windows ? gate_window_left_ns(&window, now_ns) : UINT64_MAX;
	ask->contention = (uint32_t)policy->contention_epoch;
	ask->sole = __atomic_load_n(&guest_self()->policy->control.live_slots, __ATOMIC_RELAXED) <= 1;
	ask->placed = policy->active_grants <= 1 || (windows && ask->window_left_ns > 0);
}

static bool plan_is_fresh(uint64_t now_ns)
{
	return now_ns < gate_add(__atomic_load_n(&guest_self()->policy->control.heartbeat_ns, __ATOMIC_RELAXED),
	                         DAEMON_SILENT_NS);
}

/* Still to wait before a place on the grant's clock may be taken, because a sibling is due first; see fair.h. What one
 * launch and the next differ by is not worth a wait. */
static uint64_t defer_ns(const struct ask *ask, const struct sluice_policy_device *policy, uint32_t ppm,
                         uint64_t now_ns)
{
	uint64_t ahead_ns = siblings_ahead_ns(ask->device, now_ns);

	if (ppm == 0 || ahead_ns <= policy->chunk_ns)
		return 0;
	ahead_ns -= policy->chunk_ns;
	uint64_t wait_ns = gate_cap_wait_ns(__atomic_load_n(shared_tat(ask->device), __ATOMIC_RELAXED), now_ns,
	                                    gate_tolerance_ns(policy->burst_ns, ahead_ns));
	uint64_t caught_up_ns = gate_price_ns(ahead_ns, ppm); /* at the soonest */

	wait_ns = wait_ns < caught_up_ns ? wait_ns : caught_up_ns;
	return wait_ns == 0 || wait_ns > DEFER_MIN_NS ? wait_ns : DEFER_MIN_NS;
}

/* Since when a full queue has not moved, although all that was charged should be over. */
struct stall {
	uint64_t since_ns;
	uint32_t outstanding;
};

/* Is a full queue to be waited for no longer? What is in it takes longer than anybody knows, or it has not begun and waits
 * for something that this very thread may have to do next. */
static bool stalled(struct stall *stall, struct throttle_pipe *pipe, uint64_t inflight_ns, uint32_t outstanding,
                    uint64_t now_ns)
{
	if (inflight_ns || outstanding != stall->outstanding || !stall->since_ns) {
		*stall = (struct stall){ .since_ns = now_ns, .outstanding = outstanding };
		return false;
	}
	uint64_t waited_ns = now_ns - stall->since_ns;

	return waited_ns > STALL_PATIENCE_NS || (waited_ns > PIPE_HELD_PATIENCE_NS && pipe_held(pipe));
}

/* Pay for ask->cost_ns and return when cap, queue and turn all allow the launch. */
static CUresult pass_gate(struct ask *ask, int64_t *credit_ns, uint64_t chance)
{
	const struct sluice_guest *guest = guest_self();
	struct sluice_usage_device *usage = guest_usage(ask->device);
	struct sluice_policy_device policy;
	uint64_t tat_ns = 0, price_ns = 0;
	uint32_t ppm = 0;
	struct stall stall = { 0 };
	bool drawn = false;

	clock_follow(__atomic_load_n(&guest->policy->control.heartbeat_ns, __ATOMIC_RELAXED));

	uint64_t now_ns = clock_ns(), began_ns = now_ns;

	for (;;) {
		uint32_t wake = __atomic_load_n(&guest->policy->control.wake, __ATOMIC_ACQUIRE);

		guest_read_device(ask->device, &policy);
		bool planned = plan_is_fresh(now_ns);
		uint32_t want_ppm = (policy.flags & SLUICE_FLAG_ENFORCE_SM) == 0
		                            ? 0
		                            : gate_effective_ppm(policy.share_ppm, planned ? policy.plan_ppm : 0);

		if (policy.flags & SLUICE_FLAG_REVOKED) {
			if (drawn)
				take64(shared_tat(ask->device), price_ns);
			return CUDA_ERROR_SYSTEM_NOT_READY;
		}
		uint64_t inflight_ns = 0, wait_ns = drawn ? 0 : defer_ns(ask, &policy, want_ppm, now_ns);

		if (!wait_ns &&
		    (!drawn || want_ppm != ppm)) { /* a resize while we wait: give the old place back, take a new one */
			if (drawn)
				take64(shared_tat(ask->device), price_ns);
			uint64_t need_ns =
				*credit_ns < (int64_t)ask->cost_ns ? (uint64_t)((int64_t)ask->cost_ns - *credit_ns) : 0;

			/* Chunks of one length would fall into step with a program's own pattern, and the launch that
			 * opens one, which may be timed, would always be the same. */
			uint64_t chunk_ns = policy.chunk_ns / 2 + policy.chunk_ns / 2 * chance / 65536;

			ask->paid_ns = need_ns == 0 ? 0 : need_ns > chunk_ns ? need_ns : chunk_ns;
			ppm = want_ppm;
			price_ns = gate_price_ns(ask->paid_ns, ppm);
			tat_ns = draw(shared_tat(ask->device), now_ns, price_ns);
			drawn = true;
		}

		uint32_t outstanding = 0;
		bool punctual = false;

		if (ask->pipe) {
			pipe_reap(ask->pipe);
			inflight_ns = pipe_queued_ns(ask->pipe, now_ns);
			outstanding = pipe_outstanding(ask->pipe);
		}
		if (policy.flags & SLUICE_FLAG_PAUSED)
			wait_ns = WAIT_MAX_NS;
		else if (drawn)
			wait_ns = ppm ? gate_cap_wait_ns(tat_ns, now_ns, policy.burst_ns) : 0;
		if (!wait_ns && planned && policy.turn_mode == SLUICE_TURN_LEASE) {
			struct gate_window window = { policy.lease_origin_ns, policy.lease_period_ns,
				                      policy.lease_quantum_ns };

			wait_ns = gate_turn_wait_ns(&window, now_ns, inflight_ns, ask->cost_ns);
			punctual = wait_ns > 0;
		}
		uint64_t bound_ns = ask->proven ? policy.inflight_ns : 0;

		if (!wait_ns && gate_queue_full(inflight_ns, ask->cost_ns, bound_ns, outstanding) &&
		    !stalled(&stall, ask->pipe, inflight_ns, outstanding, now_ns))
			wait_ns = gate_queue_wait_ns(inflight_ns, ask->cost_ns, bound_ns);
		if (!wait_ns) {
			look_around(ask, &policy, planned, now_ns);
			break;
		}
		if (outstanding && wait_ns > TIMED_MAX_NS && !punctual && siblings_exist())
			wait_ns = TIMED_MAX_NS;
		wait_for(guest->policy, wake, wait_ns, now_ns, punctual);
		now_ns = clock_ns();
		__atomic_store_n(&guest->usage->slot[guest->slot].heartbeat_ns, now_ns, __ATOMIC_RELAXED);
		add64(&usage->throttled_ns, now_ns - began_ns);
		ask->waited_ns += now_ns - began_ns;
		began_ns = now_ns;
	}
	*credit_ns += (int64_t)ask->paid_ns - (int64_t)ask->cost_ns;
	add64(&usage->consumed_ns, ask->paid_ns);
	__atomic_store_n(&guest->usage->slot[guest->slot].heartbeat_ns, now_ns, __ATOMIC_RELAXED);
	return CUDA_SUCCESS;
}

/* --- the long way ---------------------------------------------------------------------------------------------- */

CUresult throttle_before(struct throttle_ticket *ticket, const void *handle, const struct cost_shape *shape,
                         CUstream stream)
{
	struct throttle_local *local = &throttle_local;
	int device;

	*ticket = (struct throttle_ticket){ .record = -1 };
	if (!guest_self() || (device = guest_current_device()) < 0)
		return CUDA_SUCCESS;
	struct throttle_lane *lane = lane_for(local, device);
	uint64_t key = cost_key(handle, shape, device);
	struct cost_entry *entry = cost_entry(key);

	if (!lane || !entry)
		return CUDA_ERROR_OUT_OF_MEMORY;
	struct throttle_pipe *pipe = lane_pipe(lane);
	uint64_t cost_ns = __atomic_load_n(&entry->cost_ns, __ATOMIC_RELAXED);

	if (local->last)
		lane->key = local->last->key;
	lane->mixed = lane->mixed || local->mixed || lane->key != key;
	local->mixed = false;
	lane->key = key;
	bool proven = __atomic_load_n(&entry->tries, __ATOMIC_RELAXED) >= COST_SAMPLE_FIRST;

	if (cost_ns && local->credit_ns >= (int64_t)cost_ns && proven &&
	    !__atomic_load_n(&entry->wary, __ATOMIC_RELAXED)) {
		local->credit_ns -= (int64_t)cost_ns;
		local->launches++;
		if (shape && handle)
			remember(local, handle, shape, key, entry);
		else
			local->expected = local->last = NULL;
		local->event.cost_ns = cost_ns;
		ticket->counted = true;
		return CUDA_SUCCESS;
	}
	local->last = shape ? throttle_recall(local, handle, shape) : NULL;
	local->expected = local->last ? local->last->next : NULL;
	if (capturing(stream))
		return CUDA_SUCCESS;

	CUstreamCaptureMode mode = relax_capture();

	if (!cost_ns && pipe) {
		pipe_await_first_sample(pipe, entry);
		cost_ns = __atomic_load_n(&entry->cost_ns, __ATOMIC_RELAXED);
	}
	struct ask ask = {
		.pipe = pipe, .device = device, .proven = proven, .cost_ns = cost_ns ? cost_ns : COST_DEFAULT_NS
	};
	CUresult result = CUDA_SUCCESS;

	guest_check_generation();
	flush_launches(local);
	if (local->credit_ns < (int64_t)ask.cost_ns) {
		result = pass_gate(&ask, &local->credit_ns, gate_mix(++lane->random) >> 48);
		if (result == CUDA_SUCCESS)
			lane->seen_ns += (int64_t)ask.paid_ns;
	} else {
		struct sluice_policy_device policy;
		uint64_t now_ns = clock_ns();

		guest_read_device(device, &policy);
		look_around(&ask, &policy, plan_is_fresh(now_ns), now_ns);
		local->credit_ns -= (int64_t)ask.cost_ns;
	}
	if (result == CUDA_SUCCESS) {
		local->launches++;
		local->event.cost_ns = ask.cost_ns;
		ticket->waited_ns = ask.waited_ns;
		ticket->counted = true;
		report_use(local);
	}
	if (result != CUDA_SUCCESS || !pipe) {
		restore_capture(mode);
		return result;
	}
	ticket->record = pipe_record_open(pipe, entry,
	                                  &(struct pipe_launch){ .stream = stream,
	                                                         .key = key,
	                                                         .cost_ns = ask.cost_ns,
	                                                         .window_left_ns = ask.window_left_ns,
	                                                         .contention = ask.contention,
	                                                         .placed = ask.placed,
	                                                         .sole = ask.sole,
	                                                         .mixed = lane->mixed });
	if (ticket->record >= 0)
		lane->mixed = false;
	ticket->pipe = pipe;
	ticket->cost_ns = ask.cost_ns;
	restore_capture(mode);
	return CUDA_SUCCESS;
}

bool throttle_pass_rare(enum throttle_kind kind, const void *function, const struct cost_shape *shape)
{
	return throttle_pass(kind, function, shape);
}

/* Those who watch are told here what throttle_pass() tells them for the common launch. */
static void tell(enum throttle_kind kind, const struct throttle_ticket *ticket)
{
	struct sluice_launch_event *event = &throttle_local.event;

	event->waited_ns = ticket->waited_ns;
	if (kind == THROTTLE_LAUNCH)
		PROBE(SLUICE_PROBE_LAUNCH, event);
	else
		PROBE(SLUICE_PROBE_COPY, event);
	event->waited_ns = 0;
}

void throttle_after(enum throttle_kind kind, struct throttle_ticket *ticket, CUresult result)
{
	struct throttle_pipe *pipe = ticket->pipe;

	if (pipe && result != CUDA_SUCCESS) { /* nothing ran: the credit is still there for the next launch */
		throttle_local.credit_ns += (int64_t)ticket->cost_ns;
		throttle_local.launches--;
		ticket->counted = false;
	}
	if (ticket->counted)
		tell(kind, ticket);
	if (!pipe)
		return;
	if (ticket->record < 0)
		return;
	CUstreamCaptureMode mode = relax_capture();

	pipe_record_close(pipe, ticket->record, result == CUDA_SUCCESS);
	restore_capture(mode);
}

void throttle_settle(bool whole_context)
{
	struct throttle_local *local = &throttle_local;

	if (!local->lane || !guest_self())
		return;
	flush_launches(local);
	struct throttle_pipe *pipe = local->lane->pipe;

	report_use(local);
	if (!pipe)
		return;
	CUstreamCaptureMode mode = relax_capture();

	pipe_reap(pipe);
	restore_capture(mode);
	pipe_settle(pipe, whole_context);
}

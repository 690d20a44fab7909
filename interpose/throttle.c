/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shell around gate.h: clocks, events, waits. docs/throttle.md tells the algorithm as a whole.
 *
 * Per context there is a pipe: a ring of timed records. A record is an event after a launch (a marker: everything
 * charged up to here is done when it completes) and, when the launch is sampled, an event before it too. Records are
 * claimed and reaped with compare-and-swap, so no lock is held over a driver call and a killed or forgotten thread
 * blocks nobody.
 */
#include "interpose/throttle.h"

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

#define PIPES 32                             /* contexts of one process; more are charged but never timed */
#define RECORDS 64                           /* outstanding records of one context */
#define MARK_EVERY_NS 1000000                /* one marker per millisecond of charged work */
#define SAMPLE_FIRST 3                       /* launches of a new shape that are timed */
#define SAMPLE_GAP_NS UINT64_C(10000000)     /* afterwards at most 100 samples a second and process */
#define RESAMPLE_NS UINT64_C(50000000)       /* a shape is not timed again sooner than this */
#define WAIT_MAX_NS UINT64_C(10000000)       /* every wait looks again after 10 ms */
#define SPIN_NS UINT64_C(3000)               /* shorter waits are not worth a system call */
#define LATE_WAKE_NS UINT64_C(60000)         /* default timer slack and a wake-up */
#define UNKNOWN_PATIENCE_NS UINT64_C(2000000000) /* how long a new shape may hold its second launch back */
#define DAEMON_SILENT_NS UINT64_C(2000000000)    /* then turns are no longer believed, the own cap is */

enum record_state { RECORD_FREE, RECORD_CLAIMED, RECORD_PENDING, RECORD_REAPING };

struct throttle_record {
	uint32_t state; /* compare-and-swap; PENDING is a release, pairs with the reaper's acquire */
	uint32_t sequence;
	CUevent before; /* created on first use, destroyed with the pipe */
	CUevent after;
	CUstream stream;
	uint64_t key;     /* of the sampled launch, 0 = a marker only */
	uint64_t paid_ns; /* everything charged since the record before it */
	uint64_t cost_ns; /* charged for the sampled launch */
	uint64_t window_left_ns;
	uint32_t contention;
	bool exclusive;
	/* Set when the stream was still busy with `previous` as this record was made: the two events then enclose
	 * nothing but the work charged in between. */
	int8_t previous;
	uint32_t previous_sequence;
};

struct throttle_pipe {
	CUcontext context; /* NULL = free */
	int device;
	uint32_t reaping;      /* somebody is at it */
	uint32_t outstanding;  /* PENDING records */
	uint64_t inflight_ns;  /* Σ paid_ns of PENDING records */
	uint64_t unmarked_ns;  /* charged since the last marker */
	uint64_t idle_at_ns;   /* when everything recorded should be done, if nobody else is on the GPU */
	uint64_t next_sample_ns;
	uint32_t sequence;
	uint32_t next_record;
	struct throttle_record record[RECORDS];
};

struct throttle_lane {
	int device;
	struct throttle_pipe *pipe;
	CUstream stream; /* of this thread's last record */
	int8_t last;     /* its index, -1 = none */
	uint32_t last_sequence;
};

__thread struct throttle_local throttle_local __attribute__((tls_model("initial-exec")));

static struct throttle_pipe *pipes[PIPES]; /* published by compare-and-swap, never freed while the process lives */
static pthread_key_t lane_key;
static pthread_once_t lane_once = PTHREAD_ONCE_INIT;

static uint64_t clock_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

static void add64(uint64_t *word, uint64_t value)
{
	__atomic_fetch_add(word, value, __ATOMIC_RELAXED);
}

/* Subtract without passing zero: the words are shared with corrections and with a daemon that may zero them. */
static void take64(uint64_t *word, uint64_t value)
{
	uint64_t old = __atomic_load_n(word, __ATOMIC_RELAXED);

	while (!__atomic_compare_exchange_n(word, &old, old > value ? old - value : 0, true, __ATOMIC_RELAXED,
	                                    __ATOMIC_RELAXED))
		;
}

static uint64_t *shared_tat(int device)
{
	return &guest_self()->usage->shared[device].tat_ns;
}

/* --- thread-local state ---------------------------------------------------------------------------------------- */

static void flush_launches(struct throttle_local *local)
{
	if (local->launches && local->lane && guest_self()) {
		add64(&guest_usage(local->lane->device)->launches, local->launches);
		local->launches = 0;
	}
}

/* Hand unused credit back, so that a thread that ends or changes devices hoards nothing. */
static void return_credit(struct throttle_local *local)
{
	if (local->credit_ns > 0 && local->lane && guest_self()) {
		struct sluice_policy_device policy;
		uint64_t unused_ns = (uint64_t)local->credit_ns;

		guest_read_device(local->lane->device, &policy);
		take64(shared_tat(local->lane->device),
		       gate_price_ns(unused_ns, gate_effective_ppm(policy.share_ppm, policy.plan_ppm)));
		take64(&guest_usage(local->lane->device)->consumed_ns, unused_ns);
		if (local->lane->pipe)
			take64(&local->lane->pipe->unmarked_ns, unused_ns);
	}
	local->credit_ns = 0;
}

static void lane_gone(void *value)
{
	struct throttle_local *local = &throttle_local;

	local->function = NULL;
	if (local->lane == value) {
		flush_launches(local);
		return_credit(local);
		local->lane = NULL;
	}
	free(value);
}

static void lane_key_make(void)
{
	pthread_key_create(&lane_key, lane_gone);
}

static struct throttle_lane *lane_for(struct throttle_local *local, int device)
{
	if (!local->lane) {
		pthread_once(&lane_once, lane_key_make);
		local->lane = calloc(1, sizeof(*local->lane));
		if (!local->lane)
			return NULL;
		local->lane->device = device;
		local->lane->last = -1;
		pthread_setspecific(lane_key, local->lane);
	}
	if (local->lane->device != device) {
		flush_launches(local);
		return_credit(local);
		local->lane->device = device;
		local->lane->pipe = NULL;
		local->lane->last = -1;
	}
	return local->lane;
}

void throttle_forget_local(void)
{
	throttle_local.function = NULL;
	if (throttle_local.lane)
		throttle_local.lane->pipe = NULL;
}

/* --- pipes and records ----------------------------------------------------------------------------------------- */

static struct throttle_pipe *pipe_of_current(int device)
{
	CUcontext context = NULL;

	if (!driver.cuCtxGetCurrent || driver.cuCtxGetCurrent(&context) != CUDA_SUCCESS || !context)
		return NULL;
	for (unsigned i = 0; i < PIPES; i++) {
		struct throttle_pipe *pipe = __atomic_load_n(&pipes[i], __ATOMIC_ACQUIRE);

		if (!pipe) {
			struct throttle_pipe *fresh = calloc(1, sizeof(*fresh));

			if (!fresh)
				return NULL;
			if (!__atomic_compare_exchange_n(&pipes[i], &pipe, fresh, false, __ATOMIC_ACQ_REL,
			                                 __ATOMIC_ACQUIRE))
				free(fresh); /* `pipe` now holds the winner's */
			else
				pipe = fresh;
		}
		CUcontext owner = __atomic_load_n(&pipe->context, __ATOMIC_ACQUIRE);

		if (!owner && __atomic_compare_exchange_n(&pipe->context, &owner, context, false, __ATOMIC_ACQ_REL,
		                                          __ATOMIC_ACQUIRE)) {
			pipe->device = device;
			return pipe;
		}
		if (owner == context)
			return pipe;
	}
	return NULL;
}

/* The driver destroyed the events with the context: forget the handles, call nothing on them. */
static void pipe_clear(struct throttle_pipe *pipe)
{
	memset(pipe->record, 0, sizeof(pipe->record));
	pipe->outstanding = 0;
	pipe->inflight_ns = 0;
	pipe->unmarked_ns = 0;
	__atomic_store_n(&pipe->context, NULL, __ATOMIC_RELEASE);
}

void throttle_context_gone(uint32_t tag)
{
	for (unsigned i = 0; i < PIPES; i++) {
		struct throttle_pipe *pipe = __atomic_load_n(&pipes[i], __ATOMIC_ACQUIRE);

		if (!pipe)
			break;
		if (pipe->context && guest_context_tag(pipe->context) == tag)
			pipe_clear(pipe);
	}
	throttle_forget_local();
}

/* While attaching, guest_self() is NULL: no other thread is in here. */
void throttle_forget_parent(void)
{
	for (unsigned i = 0; i < PIPES && pipes[i]; i++) {
		pipe_clear(pipes[i]);
		pipes[i]->reaping = 0;
	}
	throttle_local.credit_ns = 0; /* drawn by the parent, which still has it */
	throttle_local.launches = 0;
	throttle_forget_all();
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

static int8_t record_claim(struct throttle_pipe *pipe)
{
	uint32_t start = __atomic_fetch_add(&pipe->next_record, 1, __ATOMIC_RELAXED);

	for (unsigned i = 0; i < RECORDS; i++) {
		int8_t index = (int8_t)((start + i) % RECORDS);
		struct throttle_record *record = &pipe->record[index];
		uint32_t state = RECORD_FREE;

		if (!__atomic_compare_exchange_n(&record->state, &state, RECORD_CLAIMED, false, __ATOMIC_ACQUIRE,
		                                 __ATOMIC_RELAXED))
			continue;
		if ((record->before || driver.cuEventCreate(&record->before, CU_EVENT_DEFAULT) == CUDA_SUCCESS) &&
		    (record->after || driver.cuEventCreate(&record->after, CU_EVENT_DEFAULT) == CUDA_SUCCESS)) {
			record->sequence = __atomic_add_fetch(&pipe->sequence, 1, __ATOMIC_RELAXED);
			record->key = 0;
			record->previous = -1;
			return index;
		}
		__atomic_store_n(&record->state, RECORD_FREE, __ATOMIC_RELEASE);
		break;
	}
	return -1;
}

static uint64_t elapsed_ns(CUevent from, CUevent to)
{
	float ms = 0;

	if (driver.cuEventElapsedTime(&ms, from, to) != CUDA_SUCCESS || !(ms > 0))
		return 0;
	return (uint64_t)((double)ms * 1e6 + 0.5);
}

/* Charge or give back the difference between what ran and what was paid. */
static void correct(struct throttle_pipe *pipe, const struct sluice_policy_device *policy, uint64_t true_ns,
                    uint64_t paid_ns)
{
	struct sluice_usage_device *usage = guest_usage(pipe->device);
	uint32_t ppm = gate_effective_ppm(policy->share_ppm, policy->plan_ppm);

	if (true_ns > paid_ns) {
		add64(shared_tat(pipe->device), gate_price_ns(true_ns - paid_ns, ppm));
		add64(&usage->consumed_ns, true_ns - paid_ns);
		add64(&usage->completed_ns, true_ns - paid_ns);
	} else {
		take64(shared_tat(pipe->device), gate_price_ns(paid_ns - true_ns, ppm));
		take64(&usage->consumed_ns, paid_ns - true_ns);
		take64(&usage->completed_ns, paid_ns - true_ns);
	}
}

static void record_finish(struct throttle_pipe *pipe, struct throttle_record *record)
{
	struct sluice_policy_device policy;
	uint64_t true_ns = 0, paid_ns = 0;

	guest_read_device(pipe->device, &policy);
	bool exclusive = record->exclusive && record->contention == (uint32_t)policy.contention_epoch;

	add64(&guest_usage(pipe->device)->completed_ns, record->paid_ns);
	if (record->key) {
		struct cost_entry *entry = cost_lookup(record->key);

		true_ns = elapsed_ns(record->before, record->after);
		paid_ns = record->cost_ns;
		exclusive = exclusive && true_ns <= record->window_left_ns;
		if (entry && true_ns)
			cost_learn(entry, true_ns, exclusive, policy.active_grants);
		/* A first launch was charged blindly: settle it even from a contended sample. */
		if (!exclusive)
			true_ns /= policy.active_grants > 1 ? policy.active_grants : 1;
		if (true_ns && (exclusive || paid_ns <= COST_DEFAULT_NS))
			correct(pipe, &policy, true_ns, paid_ns);
	} else if (exclusive && record->previous >= 0) {
		struct throttle_record *previous = &pipe->record[record->previous];

		true_ns = elapsed_ns(previous->after, record->after);
		/* Read the sequence again last: a reused record means the time above is of something else. */
		if (true_ns && true_ns <= record->window_left_ns && true_ns < 4 * record->paid_ns &&
		    __atomic_load_n(&previous->sequence, __ATOMIC_ACQUIRE) == record->previous_sequence)
			correct(pipe, &policy, true_ns, record->paid_ns);
	}
	take64(&pipe->inflight_ns, record->paid_ns);
	__atomic_fetch_sub(&pipe->outstanding, 1, __ATOMIC_RELAXED);
	__atomic_store_n(&record->state, RECORD_FREE, __ATOMIC_RELEASE);
}

/* Settle every record whose work is done. One thread at a time; the others go on without. */
static void reap(struct throttle_pipe *pipe)
{
	if (__atomic_load_n(&pipe->outstanding, __ATOMIC_RELAXED) == 0 ||
	    __atomic_exchange_n(&pipe->reaping, 1, __ATOMIC_ACQUIRE))
		return;
	uint32_t first = __atomic_load_n(&pipe->next_record, __ATOMIC_RELAXED);

	for (unsigned i = 0; i < RECORDS; i++) { /* oldest first: a chain's start is settled before its end */
		struct throttle_record *record = &pipe->record[(first + i) % RECORDS];
		uint32_t state = RECORD_PENDING;

		if (__atomic_load_n(&record->state, __ATOMIC_RELAXED) != RECORD_PENDING ||
		    !__atomic_compare_exchange_n(&record->state, &state, RECORD_REAPING, false, __ATOMIC_ACQUIRE,
		                                 __ATOMIC_RELAXED))
			continue;
		CUresult r = driver.cuEventQuery(record->after);

		if (r == CUDA_ERROR_NOT_READY)
			__atomic_store_n(&record->state, RECORD_PENDING, __ATOMIC_RELEASE);
		else
			record_finish(pipe, record);
	}
	__atomic_store_n(&pipe->reaping, 0, __ATOMIC_RELEASE);
}

/* Estimated GPU time still to come from what we queued: the records' sum says how much was queued, the expected end how
 * much of it must be over by now although nobody looked yet. */
static uint64_t queued_ns(const struct throttle_pipe *pipe, uint64_t inflight_ns, uint64_t now_ns)
{
	uint64_t idle_at_ns = __atomic_load_n(&pipe->idle_at_ns, __ATOMIC_RELAXED);
	uint64_t left_ns = idle_at_ns > now_ns ? idle_at_ns - now_ns : 0;

	return left_ns < inflight_ns ? left_ns : inflight_ns;
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
static void wait_for(const struct sluice_policy *policy, uint32_t wake, uint64_t wait_ns, uint64_t now_ns, bool punctual)
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

/* Move a clock that restarts at `now` when it fell behind (GCRA); returns its value before us. */
static uint64_t draw(uint64_t *tat, uint64_t now_ns, uint64_t price_ns)
{
	uint64_t old = __atomic_load_n(tat, __ATOMIC_RELAXED);

	while (!__atomic_compare_exchange_n(tat, &old, gate_tat_after_ns(old, now_ns, price_ns), true,
	                                    __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		;
	return old;
}

struct ask {
	struct throttle_pipe *pipe;
	int device;
	uint64_t cost_ns;
	uint64_t paid_ns; /* out: drawn from the grant */
	uint64_t window_left_ns;
	uint32_t contention;
	bool exclusive;
};

/* Pay for ask->cost_ns and return when cap, queue and turn all allow the launch. */
static CUresult pass_gate(struct ask *ask, int64_t *credit_ns)
{
	const struct sluice_guest *guest = guest_self();
	struct sluice_usage_device *usage = guest_usage(ask->device);
	struct sluice_policy_device policy;
	uint64_t now_ns = clock_ns(), began_ns = now_ns, tat_ns = 0, price_ns = 0;
	uint32_t ppm = 0;
	bool drawn = false;

	for (;;) {
		uint32_t wake = __atomic_load_n(&guest->policy->control.wake, __ATOMIC_ACQUIRE);

		guest_read_device(ask->device, &policy);
		uint64_t beat_ns = __atomic_load_n(&guest->policy->control.heartbeat_ns, __ATOMIC_RELAXED);
		bool planned = now_ns < gate_add(beat_ns, DAEMON_SILENT_NS);
		uint32_t want_ppm = (policy.flags & SLUICE_FLAG_ENFORCE_SM) == 0 ? 0 :
			gate_effective_ppm(policy.share_ppm, planned ? policy.plan_ppm : 0);

		if (policy.flags & SLUICE_FLAG_REVOKED) {
			if (drawn)
				take64(shared_tat(ask->device), price_ns);
			return CUDA_ERROR_SYSTEM_NOT_READY;
		}
		if (!drawn || want_ppm != ppm) { /* a resize while we wait: give the old place back, take a new one */
			if (drawn)
				take64(shared_tat(ask->device), price_ns);
			uint64_t need_ns = *credit_ns < (int64_t)ask->cost_ns ?
				(uint64_t)((int64_t)ask->cost_ns - *credit_ns) : 0;

			ask->paid_ns = need_ns > policy.chunk_ns ? need_ns : policy.chunk_ns;
			ppm = want_ppm;
			price_ns = gate_price_ns(ask->paid_ns, ppm);
			tat_ns = draw(shared_tat(ask->device), now_ns, price_ns);
			drawn = true;
		}

		uint64_t inflight_ns = 0, wait_ns = 0;
		uint32_t outstanding = 0;
		bool punctual = false;

		if (ask->pipe) {
			reap(ask->pipe);
			inflight_ns = queued_ns(ask->pipe, __atomic_load_n(&ask->pipe->inflight_ns, __ATOMIC_RELAXED),
			                        now_ns);
			outstanding = __atomic_load_n(&ask->pipe->outstanding, __ATOMIC_RELAXED);
		}
		if (policy.flags & SLUICE_FLAG_PAUSED)
			wait_ns = WAIT_MAX_NS;
		else
			wait_ns = ppm ? gate_cap_wait_ns(tat_ns, now_ns, policy.burst_ns) : 0;
		ask->window_left_ns = UINT64_MAX;
		if (!wait_ns && planned && policy.turn_mode == SLUICE_TURN_LEASE) {
			struct gate_window window = { policy.lease_origin_ns, policy.lease_period_ns,
				                      policy.lease_quantum_ns };

			wait_ns = gate_turn_wait_ns(&window, now_ns, inflight_ns, ask->cost_ns);
			punctual = wait_ns > 0;
			if (!wait_ns && gate_window_valid(&window))
				ask->window_left_ns = gate_window_left_ns(&window, now_ns);
		}
		if (!wait_ns && gate_queue_full(inflight_ns, ask->cost_ns, policy.inflight_ns, outstanding))
			wait_ns = gate_queue_wait_ns(inflight_ns, ask->cost_ns, policy.inflight_ns);
		if (!wait_ns)
			break;
		wait_for(guest->policy, wake, wait_ns, now_ns, punctual);
		now_ns = clock_ns();
		__atomic_store_n(&guest->usage->slot[guest->slot].heartbeat_ns, now_ns, __ATOMIC_RELAXED);
		add64(&usage->throttled_ns, now_ns - began_ns);
		began_ns = now_ns;
	}
	*credit_ns += (int64_t)ask->paid_ns - (int64_t)ask->cost_ns;
	add64(&usage->consumed_ns, ask->paid_ns);
	__atomic_store_n(&guest->usage->slot[guest->slot].heartbeat_ns, now_ns, __ATOMIC_RELAXED);
	ask->contention = (uint32_t)policy.contention_epoch;
	ask->exclusive = __atomic_load_n(&guest->policy->control.live_slots, __ATOMIC_RELAXED) <= 1 &&
	                 (policy.active_grants <= 1 ||
	                  (policy.turn_mode == SLUICE_TURN_LEASE && ask->window_left_ns != UINT64_MAX));
	return CUDA_SUCCESS;
}

/* A shape launched once and not timed yet: the second launch waits for the first one's time, or an application
 * could queue minutes of work at the price of the default. */
static void await_first_sample(struct throttle_pipe *pipe, struct cost_entry *entry)
{
	uint64_t began_ns = clock_ns(), step_ns = 20000;

	while (__atomic_load_n(&entry->cost_ns, __ATOMIC_RELAXED) == 0 &&
	       __atomic_load_n(&pipe->outstanding, __ATOMIC_RELAXED) > 0 && clock_ns() - began_ns < UNKNOWN_PATIENCE_NS) {
		struct timespec step = { .tv_sec = 0, .tv_nsec = (long)step_ns };

		reap(pipe);
		if (__atomic_load_n(&entry->cost_ns, __ATOMIC_RELAXED))
			break;
		nanosleep(&step, NULL);
		step_ns = step_ns < 1000000 ? step_ns * 2 : step_ns;
	}
}

/* --- the long way ---------------------------------------------------------------------------------------------- */

static bool sample_due(struct throttle_pipe *pipe, const struct cost_entry *entry, uint64_t now_ns)
{
	if (__atomic_load_n(&entry->tries, __ATOMIC_RELAXED) < SAMPLE_FIRST)
		return true;
	if (now_ns < __atomic_load_n(&entry->next_sample_ns, __ATOMIC_RELAXED))
		return false;
	uint64_t next_ns = __atomic_load_n(&pipe->next_sample_ns, __ATOMIC_RELAXED);

	return now_ns >= next_ns && __atomic_compare_exchange_n(&pipe->next_sample_ns, &next_ns, now_ns + SAMPLE_GAP_NS,
	                                                        false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

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
	uint64_t cost_ns = __atomic_load_n(&entry->cost_ns, __ATOMIC_RELAXED);

	if (cost_ns && local->credit_ns >= (int64_t)cost_ns &&
	    __atomic_load_n(&entry->tries, __ATOMIC_RELAXED) >= SAMPLE_FIRST) {
		local->credit_ns -= (int64_t)cost_ns;
		local->launches++;
		local->function = shape && cost_ns <= UINT32_MAX ? handle : NULL;
		if (local->function) {
			local->shape = *shape;
			local->cost_ns = (uint32_t)cost_ns;
		}
		return CUDA_SUCCESS;
	}
	local->function = NULL;
	if (capturing(stream))
		return CUDA_SUCCESS;

	CUstreamCaptureMode mode = relax_capture();

	if (!lane->pipe) {
		lane->pipe = pipe_of_current(device);
		lane->last = -1;
	}
	struct throttle_pipe *pipe = lane->pipe;

	if (!cost_ns && pipe) {
		await_first_sample(pipe, entry);
		cost_ns = __atomic_load_n(&entry->cost_ns, __ATOMIC_RELAXED);
	}
	struct ask ask = { .pipe = pipe, .device = device, .cost_ns = cost_ns ? cost_ns : COST_DEFAULT_NS };
	CUresult result = CUDA_SUCCESS;

	guest_check_generation();
	flush_launches(local);
	if (local->credit_ns < (int64_t)ask.cost_ns) {
		result = pass_gate(&ask, &local->credit_ns);
	} else {
		local->credit_ns -= (int64_t)ask.cost_ns;
	}
	if (result != CUDA_SUCCESS || !pipe) {
		restore_capture(mode);
		return result;
	}
	local->launches++;

	uint64_t now_ns = clock_ns();
	uint64_t unmarked_ns = __atomic_add_fetch(&pipe->unmarked_ns, ask.paid_ns, __ATOMIC_RELAXED);
	bool sample = sample_due(pipe, entry, now_ns);

	if (sample || unmarked_ns >= MARK_EVERY_NS)
		ticket->record = record_claim(pipe);
	if (ticket->record >= 0) {
		struct throttle_record *record = &pipe->record[ticket->record];

		record->stream = stream;
		record->contention = ask.contention;
		record->exclusive = ask.exclusive;
		record->window_left_ns = ask.window_left_ns;
		record->cost_ns = ask.cost_ns;
		if (sample && driver.cuEventRecord(record->before, stream) == CUDA_SUCCESS) {
			record->key = key;
			__atomic_store_n(&entry->next_sample_ns, now_ns + RESAMPLE_NS, __ATOMIC_RELAXED);
		} else if (lane->last >= 0 && lane->stream == stream) {
			struct throttle_record *last = &pipe->record[lane->last];

			/* Still busy with our last record: what lies between the two events is our work alone. */
			if (__atomic_load_n(&last->sequence, __ATOMIC_RELAXED) == lane->last_sequence &&
			    __atomic_load_n(&last->state, __ATOMIC_ACQUIRE) == RECORD_PENDING &&
			    driver.cuEventQuery(last->after) == CUDA_ERROR_NOT_READY) {
				record->previous = lane->last;
				record->previous_sequence = lane->last_sequence;
			}
		}
	}
	ticket->pipe = pipe;
	ticket->stream = stream;
	ticket->key = key;
	ticket->cost_ns = ask.cost_ns;
	ticket->device = device;
	restore_capture(mode);
	return CUDA_SUCCESS;
}

void throttle_after(struct throttle_ticket *ticket, CUresult result)
{
	struct throttle_pipe *pipe = ticket->pipe;

	if (!pipe)
		return;
	if (result != CUDA_SUCCESS) { /* nothing ran: the credit is still there for the next launch */
		throttle_local.credit_ns += (int64_t)ticket->cost_ns;
		throttle_local.launches--;
	}
	if (ticket->record < 0)
		return;
	struct throttle_record *record = &pipe->record[ticket->record];
	struct throttle_lane *lane = throttle_local.lane;
	CUstreamCaptureMode mode = relax_capture();

	if (result == CUDA_SUCCESS && driver.cuEventRecord(record->after, ticket->stream) == CUDA_SUCCESS) {
		/* Credit still unused is not in the queue yet: it goes with the next marker. */
		uint64_t unused_ns = throttle_local.credit_ns > 0 ? (uint64_t)throttle_local.credit_ns : 0;
		uint64_t unmarked_ns = __atomic_exchange_n(&pipe->unmarked_ns, unused_ns, __ATOMIC_RELAXED);

		record->paid_ns = unmarked_ns > unused_ns ? unmarked_ns - unused_ns : 0;
		add64(&pipe->inflight_ns, record->paid_ns);
		__atomic_fetch_add(&pipe->outstanding, 1, __ATOMIC_RELAXED);
		draw(&pipe->idle_at_ns, clock_ns(), record->paid_ns);
		lane->stream = ticket->stream;
		lane->last = ticket->record;
		lane->last_sequence = record->sequence;
		__atomic_store_n(&record->state, RECORD_PENDING, __ATOMIC_RELEASE);
	} else {
		__atomic_store_n(&record->state, RECORD_FREE, __ATOMIC_RELEASE);
	}
	restore_capture(mode);
}

void throttle_settle(bool whole_context)
{
	struct throttle_local *local = &throttle_local;

	if (!local->lane || !guest_self())
		return;
	flush_launches(local);
	struct throttle_pipe *pipe = local->lane->pipe;

	if (!pipe)
		return;
	CUstreamCaptureMode mode = relax_capture();

	reap(pipe);
	restore_capture(mode);
	if (whole_context || __atomic_load_n(&pipe->outstanding, __ATOMIC_RELAXED) == 0) {
		/* Nothing of ours is queued any more; what is left unmarked is unused credit or done. */
		uint64_t unused_ns = local->credit_ns > 0 ? (uint64_t)local->credit_ns : 0;
		uint64_t unmarked_ns = __atomic_exchange_n(&pipe->unmarked_ns, unused_ns, __ATOMIC_RELAXED);

		if (unmarked_ns > unused_ns)
			add64(&guest_usage(pipe->device)->completed_ns, unmarked_ns - unused_ns);
	}
}

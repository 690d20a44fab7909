/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is in flight: per context a ring of timed records.
 *
 * A record is an event after a launch (a marker: everything charged up to here is done when it completes) and, when the
 * launch is sampled, an event before it too. Records are claimed and reaped with compare-and-swap, so no lock is held
 * over a driver call and a killed or forgotten thread blocks nobody.
 */
#include "interpose/pipe.h"

#include <stdlib.h>
#include <string.h>

#include "interpose/driver.h"
#include "interpose/guest.h"
#include "interpose/words.h"

#define PIPES 32                                 /* contexts of one process; more are charged but never timed */
#define RECORDS 64                               /* outstanding records of one context */
#define MARK_EVERY_NS 1000000                    /* one marker per millisecond of charged work */
#define SAMPLE_GAP_NS UINT64_C(10000000)         /* past the first ones at most 100 samples a second and process */
#define RESAMPLE_NS UINT64_C(50000000)           /* a shape is not timed again sooner than this */
#define UNKNOWN_PATIENCE_NS UINT64_C(2000000000) /* how long a new shape may hold its second launch back */

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
	uint32_t reaping;     /* somebody is at it */
	uint32_t outstanding; /* PENDING records */
	uint64_t inflight_ns; /* Σ paid_ns of PENDING records */
	uint64_t unmarked_ns; /* charged since the last marker */
	uint64_t idle_at_ns;  /* when everything recorded should be done, if nobody else is on the GPU */
	uint64_t next_sample_ns;
	uint32_t sequence;
	uint32_t next_record;
	struct throttle_record record[RECORDS];
};

static struct throttle_pipe *pipes[PIPES]; /* published by compare-and-swap, never freed while the process lives */

static struct throttle_pipe *pipe_at(unsigned i)
{
	struct throttle_pipe *pipe = __atomic_load_n(&pipes[i], __ATOMIC_ACQUIRE), *fresh;

	if (pipe || !(fresh = calloc(1, sizeof(*fresh))))
		return pipe;
	if (__atomic_compare_exchange_n(&pipes[i], &pipe, fresh, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		return fresh;
	free(fresh); /* `pipe` now holds the winner's */
	return pipe;
}

struct throttle_pipe *pipe_of_current(int device)
{
	CUcontext context = NULL;
	struct throttle_pipe *pipe;

	if (!driver.cuCtxGetCurrent || driver.cuCtxGetCurrent(&context) != CUDA_SUCCESS || !context)
		return NULL;
	/* All of them before a free one is taken: two pipes of one context would each know half of what is in flight. */
	for (unsigned i = 0; i < PIPES && (pipe = __atomic_load_n(&pipes[i], __ATOMIC_ACQUIRE)); i++)
		if (__atomic_load_n(&pipe->context, __ATOMIC_ACQUIRE) == context)
			return pipe;
	for (unsigned i = 0; i < PIPES && (pipe = pipe_at(i)); i++) {
		CUcontext owner = NULL;

		/* Whoever comes second for the same context finds it here, its device perhaps not written yet. */
		if (__atomic_compare_exchange_n(&pipe->context, &owner, context, false, __ATOMIC_ACQ_REL,
		                                __ATOMIC_ACQUIRE) ||
		    owner == context) {
			__atomic_store_n(&pipe->device, device, __ATOMIC_RELAXED);
			return pipe;
		}
	}
	return NULL;
}

static int device_of(const struct throttle_pipe *pipe)
{
	return __atomic_load_n(&pipe->device, __ATOMIC_RELAXED);
}

/* The driver destroyed the events with the context: forget the handles, call nothing on them. Returns the time that was
 * in flight. */
static uint64_t pipe_clear(struct throttle_pipe *pipe)
{
	uint64_t left_ns = __atomic_exchange_n(&pipe->inflight_ns, 0, __ATOMIC_RELAXED);

	memset(pipe->record, 0, sizeof(pipe->record));
	__atomic_store_n(&pipe->outstanding, 0, __ATOMIC_RELAXED);
	left_ns += __atomic_exchange_n(&pipe->unmarked_ns, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&pipe->context, NULL, __ATOMIC_RELEASE);
	return left_ns;
}

void pipe_context_gone(uint32_t tag)
{
	struct throttle_pipe *pipe;

	for (unsigned i = 0; i < PIPES && (pipe = __atomic_load_n(&pipes[i], __ATOMIC_ACQUIRE)); i++) {
		CUcontext context = __atomic_load_n(&pipe->context, __ATOMIC_ACQUIRE);
		int device = device_of(pipe);

		if (!context || guest_context_tag(context) != tag)
			continue;
		uint64_t left_ns = pipe_clear(pipe);

		/* Its work is over, one way or the other: left in flight, it would make the grant look busy for ever. */
		if (guest_self())
			add64(&guest_usage(device)->completed_ns, left_ns);
	}
}

void pipe_forget_parent(void)
{
	for (unsigned i = 0; i < PIPES && pipes[i]; i++) {
		pipe_clear(pipes[i]);
		pipes[i]->reaping = 0;
	}
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
			/* other threads still look at it, to learn that this is not the record they remember */
			__atomic_store_n(&record->sequence, __atomic_add_fetch(&pipe->sequence, 1, __ATOMIC_RELAXED),
			                 __ATOMIC_RELEASE);
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
	struct sluice_usage_device *usage = guest_usage(device_of(pipe));
	uint32_t ppm = gate_effective_ppm(policy->share_ppm, policy->plan_ppm);

	if (true_ns > paid_ns) {
		add64(shared_tat(device_of(pipe)), gate_price_ns(true_ns - paid_ns, ppm));
		add64(&usage->consumed_ns, true_ns - paid_ns);
		add64(&usage->completed_ns, true_ns - paid_ns);
	} else {
		take64(shared_tat(device_of(pipe)), gate_price_ns(paid_ns - true_ns, ppm));
		take64(&usage->consumed_ns, paid_ns - true_ns);
		take64(&usage->completed_ns, paid_ns - true_ns);
	}
}

static void record_finish(struct throttle_pipe *pipe, struct throttle_record *record)
{
	struct sluice_policy_device policy;
	uint64_t true_ns = 0, paid_ns = 0;

	guest_read_device(device_of(pipe), &policy);
	bool exclusive = record->exclusive && record->contention == (uint32_t)policy.contention_epoch;

	add64(&guest_usage(device_of(pipe))->completed_ns, record->paid_ns);
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

/* One thread at a time; the others go on without. */
void pipe_reap(struct throttle_pipe *pipe)
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

uint64_t pipe_queued_ns(const struct throttle_pipe *pipe, uint64_t now_ns)
{
	uint64_t inflight_ns = __atomic_load_n(&pipe->inflight_ns, __ATOMIC_RELAXED);
	uint64_t idle_at_ns = __atomic_load_n(&pipe->idle_at_ns, __ATOMIC_RELAXED);
	uint64_t left_ns = idle_at_ns > now_ns ? idle_at_ns - now_ns : 0;

	return left_ns < inflight_ns ? left_ns : inflight_ns;
}

uint32_t pipe_outstanding(const struct throttle_pipe *pipe)
{
	return __atomic_load_n(&pipe->outstanding, __ATOMIC_RELAXED);
}

void pipe_mark(struct throttle_pipe *pipe, int64_t used_ns)
{
	if (used_ns > 0)
		add64(&pipe->unmarked_ns, (uint64_t)used_ns);
	else if (used_ns < 0)
		take64(&pipe->unmarked_ns, (uint64_t)-used_ns);
}

void pipe_await_first_sample(struct throttle_pipe *pipe, const struct cost_entry *entry)
{
	uint64_t began_ns = clock_ns(), step_ns = 20000;

	while (__atomic_load_n(&entry->cost_ns, __ATOMIC_RELAXED) == 0 &&
	       __atomic_load_n(&pipe->outstanding, __ATOMIC_RELAXED) > 0 &&
	       clock_ns() - began_ns < UNKNOWN_PATIENCE_NS) {
		struct timespec step = { .tv_sec = 0, .tv_nsec = (long)step_ns };

		pipe_reap(pipe);
		if (__atomic_load_n(&entry->cost_ns, __ATOMIC_RELAXED))
			break;
		nanosleep(&step, NULL);
		step_ns = step_ns < 1000000 ? step_ns * 2 : step_ns;
	}
}

static bool sample_due(struct throttle_pipe *pipe, const struct cost_entry *entry, uint64_t now_ns)
{
	if (__atomic_load_n(&entry->tries, __ATOMIC_RELAXED) < PIPE_SAMPLE_FIRST)
		return true;
	if (now_ns < __atomic_load_n(&entry->next_sample_ns, __ATOMIC_RELAXED))
		return false;
	uint64_t next_ns = __atomic_load_n(&pipe->next_sample_ns, __ATOMIC_RELAXED);

	return now_ns >= next_ns && __atomic_compare_exchange_n(&pipe->next_sample_ns, &next_ns, now_ns + SAMPLE_GAP_NS,
	                                                        false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

int8_t pipe_record_open(struct throttle_pipe *pipe, struct cost_entry *entry, const struct pipe_launch *launch,
                        const struct pipe_trail *trail)
{
	uint64_t now_ns = clock_ns();
	uint64_t unmarked_ns = __atomic_load_n(&pipe->unmarked_ns, __ATOMIC_RELAXED);
	bool sample = sample_due(pipe, entry, now_ns);
	int8_t index = sample || unmarked_ns >= MARK_EVERY_NS ? record_claim(pipe) : -1;

	if (index < 0)
		return index;
	struct throttle_record *record = &pipe->record[index];

	record->stream = launch->stream;
	record->contention = launch->contention;
	record->exclusive = launch->exclusive;
	record->window_left_ns = launch->window_left_ns;
	record->cost_ns = launch->cost_ns;
	if (sample && driver.cuEventRecord(record->before, launch->stream) == CUDA_SUCCESS) {
		record->key = launch->key;
		__atomic_store_n(&entry->next_sample_ns, now_ns + RESAMPLE_NS, __ATOMIC_RELAXED);
	} else if (trail->last >= 0 && trail->stream == launch->stream) {
		struct throttle_record *last = &pipe->record[trail->last];

		/* Still busy with our last record: what lies between the two events is our work alone. */
		if (__atomic_load_n(&last->sequence, __ATOMIC_RELAXED) == trail->last_sequence &&
		    __atomic_load_n(&last->state, __ATOMIC_ACQUIRE) == RECORD_PENDING &&
		    driver.cuEventQuery(last->after) == CUDA_ERROR_NOT_READY) {
			record->previous = trail->last;
			record->previous_sequence = trail->last_sequence;
		}
	}
	return index;
}

void pipe_record_close(struct throttle_pipe *pipe, int8_t index, bool launched, struct pipe_trail *trail)
{
	struct throttle_record *record = &pipe->record[index];

	if (!launched || driver.cuEventRecord(record->after, record->stream) != CUDA_SUCCESS) {
		__atomic_store_n(&record->state, RECORD_FREE, __ATOMIC_RELEASE);
		return;
	}
	record->paid_ns = __atomic_exchange_n(&pipe->unmarked_ns, 0, __ATOMIC_RELAXED);
	add64(&pipe->inflight_ns, record->paid_ns);
	__atomic_fetch_add(&pipe->outstanding, 1, __ATOMIC_RELAXED);
	draw(&pipe->idle_at_ns, clock_ns(), record->paid_ns);
	trail->stream = record->stream;
	trail->last = index;
	trail->last_sequence = record->sequence;
	__atomic_store_n(&record->state, RECORD_PENDING, __ATOMIC_RELEASE);
}

void pipe_settle(struct throttle_pipe *pipe, bool whole_context)
{
	/* then nothing of ours is queued any more, so what was handed over since the last marker is done too */
	if (whole_context || pipe_outstanding(pipe) == 0)
		add64(&guest_usage(device_of(pipe))->completed_ns,
		      __atomic_exchange_n(&pipe->unmarked_ns, 0, __ATOMIC_RELAXED));
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is in flight: per context a ring of timed records.
 *
 * A record ends with an event after a launch: when that completes, everything charged up to here is done. It begins
 * where the record before it ends, if that is still running (then the two enclose nothing but what was charged in
 * between, and over all streams and threads of the context the records add up to the time one of them was busy), or
 * else with an event of its own before the launch (then it encloses that launch alone). Records are claimed and reaped with compare-and-swap, so no lock is held over a driver call and a killed or forgotten
 * thread blocks nobody.
 */
#include "interpose/pipe.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "interpose/driver.h"
#include "interpose/guest.h"
#include "interpose/siblings.h"
#include "interpose/words.h"

#define PIPES 32                                 /* contexts of one process; more are charged but never timed */
#define RECORDS 64                               /* outstanding records of one context */
#define RECORD_EVERY_NS UINT64_C(250000)         /* of charged work, half more or less at random */
#define GAP_TRIES 3                              /* empty records that tell what two event calls cost */
#define SLICE_NS UINT64_C(2000000)               /* how long a context runs while another one waits */
#define POLLUTED_NS UINT64_C(50000)              /* a launch call this long was loading something */
#define POLLUTED_TRIES 8                         /* then a shape's times are taken as they come */
#define UNKNOWN_PATIENCE_NS UINT64_C(2000000000) /* how long a new shape may hold its second launch back */

enum record_state { RECORD_FREE, RECORD_CLAIMED, RECORD_PENDING, RECORD_REAPING };

struct throttle_record {
	uint32_t state; /* compare-and-swap; PENDING is a release, pairs with the reaper's acquire */
	uint32_t sequence;
	CUevent before; /* created on first use, destroyed with the pipe */
	CUevent after;
	CUstream stream;
	uint64_t key;     /* of the launch it was made for */
	uint64_t paid_ns; /* everything charged since the record before it */
	uint64_t cost_ns; /* charged for that launch */
	uint64_t host_ns; /* how long the launch call took */
	uint64_t own_ns;  /* of the own window, what is left when this starts */
	uint32_t contention;
	uint64_t others_done_ns;  /* of the other processes of the grant when it began, UINT64_MAX = there were none */
	uint32_t busy;            /* processes of the grant at work then */
	bool placed, sole, mixed; /* as in pipe_launch */
	bool empty;               /* two events and nothing between */
	int8_t previous;          /* begins where this one ends, -1 = begins with its own event */
	uint32_t previous_sequence;
};

struct throttle_pipe {
	CUcontext context; /* NULL = free */
	int device;
	uint32_t reaping;      /* somebody is at it */
	uint32_t outstanding;  /* PENDING records */
	uint64_t inflight_ns;  /* Σ paid_ns of PENDING records */
	uint64_t unmarked_ns;  /* charged since the last record, and not known to be done */
	uint64_t untimed_ns;   /* charged since the last record */
	uint64_t idle_at_ns;   /* when everything recorded should be done, if nobody else is on the GPU */
	uint64_t record_at_ns; /* of unmarked work: time for the next record */
	uint64_t gap_ns;       /* the host's time between two event calls, as the GPU's clock shows it */
	uint32_t gap_tries;
	uint32_t random;
	const void *marker; /* who marked last */
	uint32_t crowd;     /* more than one thread marked since the last record */
	uint64_t last;      /* where the next record may begin: sequence << 8 | index, 0 = nowhere */
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
	__atomic_store_n(&pipe->last, 0, __ATOMIC_RELAXED);
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
			record->previous = -1;
			record->empty = false;
			return index;
		}
		__atomic_store_n(&record->state, RECORD_FREE, __ATOMIC_RELEASE);
		break;
	}
	return -1;
}

/* False: not known. Work of another stream may have ended before what it began with: 0. */
static bool elapsed(CUevent from, CUevent to, uint64_t *ret_ns)
{
	float ms = 0;

	if (driver.cuEventElapsedTime(&ms, from, to) != CUDA_SUCCESS)
		return false;
	*ret_ns = ms > 0 ? (uint64_t)((double)ms * 1e6 + 0.5) : 0;
	return true;
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

/* A record of one launch says what it costs, one of several like it what each does. */
static void learn(const struct throttle_record *record, struct cost_entry *entry, uint64_t own_ns, uint64_t paid_ns)
{
	if (entry && record->previous < 0)
		cost_learn(entry, own_ns, true);
	else if (entry && !record->mixed && record->cost_ns <= paid_ns)
		cost_learn(entry, gate_part_ns(own_ns, record->cost_ns, paid_ns), true);
}

/* Of a record's time, what no other process of the grant can have taken: they had at most what was charged to them
 * meanwhile, or was charged before and not known to be done. From the host's moments, which lie outside of the
 * events', so the truth is never below it as far as their charges are right. 0 where strangers share the GPU. */
static uint64_t certain_ns(const struct throttle_pipe *pipe, const struct throttle_record *record, uint64_t elapsed_ns)
{
	uint64_t used_ns = siblings_work(device_of(pipe)).used_ns;

	/* below what was done before: a slot was emptied, or there was nobody */
	return used_ns < record->others_done_ns ? 0 : gate_rest_ns(elapsed_ns, used_ns - record->others_done_ns);
}

/* Other contexts may have been on the GPU too, in slices: `contexts` with ours. `free_ns` of the time was ours in any
 * case. A shape that always takes the same is best known from its lowest time; one that took more than waiting for
 * slices can explain is no such shape, and neither is one whose siblings cannot have filled the rest. */
static void settle_shared(struct throttle_pipe *pipe, const struct throttle_record *record,
                          const struct sluice_policy_device *policy, struct cost_entry *entry, uint64_t elapsed_ns,
                          uint64_t free_ns, uint32_t contexts, bool strangers)
{
	bool chained = record->previous >= 0;
	uint64_t paid_ns = chained ? record->paid_ns : record->cost_ns;

	if (!chained && free_ns < SLICE_NS)
		free_ns = SLICE_NS;
	uint64_t own_ns = gate_own_ns(elapsed_ns, free_ns, contexts);
	uint64_t least_ns = strangers ? 0 : certain_ns(pipe, record, elapsed_ns);

	if (own_ns < least_ns)
		own_ns = least_ns;
	if (elapsed_ns > gate_sliced_ns(paid_ns, SLICE_NS, contexts) || least_ns > paid_ns ||
	    (entry && __atomic_load_n(&entry->wary, __ATOMIC_RELAXED))) {
		learn(record, entry, own_ns, paid_ns);
		correct(pipe, policy, own_ns, paid_ns);
		return;
	}
	if (chained)
		return;
	if (entry)
		cost_learn(entry,
		           record->sole && !__atomic_load_n(&entry->cost_ns, __ATOMIC_RELAXED) ? own_ns : elapsed_ns,
		           false);
	if (paid_ns <= COST_DEFAULT_NS)
		correct(pipe, policy, own_ns, paid_ns);
}

/* The work of a record is done: learn from the time it took, charge or give back what was wrong. */
static void record_settle(struct throttle_pipe *pipe, const struct throttle_record *record)
{
	const struct throttle_record *previous = record->previous >= 0 ? &pipe->record[record->previous] : NULL;
	struct cost_entry *entry = cost_lookup(record->key);
	struct sluice_policy_device policy;
	uint64_t true_ns;

	if (entry)
		cost_tried(entry);
	/* The sequence is read last: a record used anew means the time above is of something else. */
	if (!elapsed(previous ? previous->after : record->before, record->after, &true_ns) ||
	    (previous && __atomic_load_n(&previous->sequence, __ATOMIC_ACQUIRE) != record->previous_sequence))
		return;
	if (!previous)
		true_ns = gate_less_gap_ns(true_ns, __atomic_load_n(&pipe->gap_ns, __ATOMIC_RELAXED));
	guest_read_device(device_of(pipe), &policy);
	if (!previous && record->host_ns > POLLUTED_NS && record->host_ns > true_ns / 4 && entry &&
	    __atomic_load_n(&entry->tries, __ATOMIC_RELAXED) < POLLUTED_TRIES)
		return;
	bool alone = record->placed &&
	             (record->own_ns != UINT64_MAX || record->contention == (uint32_t)policy.contention_epoch);
	uint32_t now_busy = record->sole ? 1 : siblings_busy(device_of(pipe));
	uint32_t busy = record->busy > now_busy ? record->busy : now_busy;
	uint32_t strangers = policy.active_grants > 1 ? policy.active_grants - 1 : 0;
	uint64_t free_ns = alone ? record->own_ns : 0;
	uint64_t paid_ns = previous ? record->paid_ns : record->cost_ns;

	/* A neighbour's last launch may run on into our window: then the time is ours only as far as it is likely. */
	uint64_t likely_ns = previous ? 2 * paid_ns : paid_ns + paid_ns / 16;

	if (busy > 1 || true_ns > free_ns || (strangers && true_ns > likely_ns)) {
		settle_shared(pipe, record, &policy, entry, true_ns, busy > 1 ? 0 : free_ns, busy + strangers,
		              strangers > 0);
		return;
	}
	learn(record, entry, true_ns, paid_ns);
	correct(pipe, &policy, true_ns, paid_ns);
}

static void record_finish(struct throttle_pipe *pipe, struct throttle_record *record)
{
	add64(&guest_usage(device_of(pipe))->completed_ns, record->paid_ns);
	if (record->empty) {
		uint64_t gap_ns;

		if (elapsed(record->before, record->after, &gap_ns) && gap_ns &&
		    (!pipe->gap_ns || gap_ns < pipe->gap_ns))
			__atomic_store_n(&pipe->gap_ns, gap_ns, __ATOMIC_RELAXED);
	} else {
		record_settle(pipe, record);
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

bool pipe_held(struct throttle_pipe *pipe)
{
	bool held = false, begun = false;

	/* Whoever reaps may free records; while it is us, those that are pending stay as they are. */
	if (__atomic_exchange_n(&pipe->reaping, 1, __ATOMIC_ACQUIRE))
		return false;
	for (int i = 0; i < RECORDS && !begun; i++) {
		struct throttle_record *record = &pipe->record[i], *previous;
		CUevent start = record->before;

		if (__atomic_load_n(&record->state, __ATOMIC_ACQUIRE) != RECORD_PENDING)
			continue;
		held = true;
		if (record->previous >= 0) {
			previous = &pipe->record[record->previous];
			start = __atomic_load_n(&previous->state, __ATOMIC_ACQUIRE) == RECORD_PENDING &&
			                        __atomic_load_n(&previous->sequence, __ATOMIC_RELAXED) ==
			                                record->previous_sequence
			                ? previous->after
			                : NULL;
		}
		begun = !start || driver.cuEventQuery(start) != CUDA_ERROR_NOT_READY;
	}
	__atomic_store_n(&pipe->reaping, 0, __ATOMIC_RELEASE);
	return held && !begun;
}

void pipe_mark(struct throttle_pipe *pipe, int64_t used_ns, const void *who)
{
	if (__atomic_load_n(&pipe->marker, __ATOMIC_RELAXED) != who) {
		__atomic_store_n(&pipe->marker, who, __ATOMIC_RELAXED);
		__atomic_store_n(&pipe->crowd, 1, __ATOMIC_RELAXED);
	}
	if (used_ns > 0) {
		add64(&pipe->unmarked_ns, (uint64_t)used_ns);
		add64(&pipe->untimed_ns, (uint64_t)used_ns);
	} else if (used_ns < 0)
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
		if (__atomic_load_n(&entry->cost_ns, __ATOMIC_RELAXED) ||
		    (clock_ns() - began_ns > PIPE_HELD_PATIENCE_NS && pipe_held(pipe)))
			break;
		nanosleep(&step, NULL);
		step_ns = step_ns < 1000000 ? step_ns * 2 : step_ns;
	}
}

/* Time for a record? By charged work and with a little chance in it, never by the clock: after a fixed time one would
 * always meet the launch that follows a long one. */
static bool record_due(struct throttle_pipe *pipe, const struct cost_entry *entry)
{
	if (__atomic_load_n(&entry->tries, __ATOMIC_RELAXED) < COST_SAMPLE_FIRST ||
	    __atomic_load_n(&entry->wary, __ATOMIC_RELAXED))
		return true;
	return __atomic_load_n(&pipe->untimed_ns, __ATOMIC_RELAXED) >=
	       __atomic_load_n(&pipe->record_at_ns, __ATOMIC_RELAXED);
}

static void record_publish(struct throttle_pipe *pipe, struct throttle_record *record)
{
	__atomic_fetch_add(&pipe->outstanding, 1, __ATOMIC_RELAXED);
	__atomic_store_n(&record->state, RECORD_PENDING, __ATOMIC_RELEASE);
}

/* Two events with nothing between them, on a stream that has nothing to do. */
static void measure_gap(struct throttle_pipe *pipe, CUstream stream)
{
	int8_t index = record_claim(pipe);

	if (index < 0)
		return;
	struct throttle_record *record = &pipe->record[index];

	record->empty = true;
	record->paid_ns = 0;
	if (driver.cuEventRecord(record->before, stream) == CUDA_SUCCESS &&
	    driver.cuEventRecord(record->after, stream) == CUDA_SUCCESS)
		record_publish(pipe, record);
	else
		__atomic_store_n(&record->state, RECORD_FREE, __ATOMIC_RELEASE);
}

/* Who chains reads it of a record that may be used anew meanwhile, and finds that out by the sequence. */
static void set_others_done(struct throttle_record *record, uint64_t done_ns)
{
	__atomic_store_n(&record->others_done_ns, done_ns, __ATOMIC_RELAXED);
}

/* Take the last record to begin where it ends, if it is still running. One taker only, or the time would count twice;
 * false: another thread has it at the moment. */
static bool record_chain(struct throttle_pipe *pipe, struct throttle_record *record)
{
	uint64_t last = __atomic_exchange_n(&pipe->last, 0, __ATOMIC_ACQ_REL);
	struct throttle_record *previous = &pipe->record[last & 0xff];

	if (!last)
		return pipe_outstanding(pipe) == 0;
	if (__atomic_load_n(&previous->sequence, __ATOMIC_RELAXED) == (uint32_t)(last >> 8) &&
	    __atomic_load_n(&previous->state, __ATOMIC_ACQUIRE) == RECORD_PENDING &&
	    driver.cuEventQuery(previous->after) == CUDA_ERROR_NOT_READY) {
		record->previous = (int8_t)(last & 0xff);
		/* the time begins where that one ends */
		set_others_done(record, __atomic_load_n(&previous->others_done_ns, __ATOMIC_RELAXED));
		record->previous_sequence = (uint32_t)(last >> 8);
	}
	return true;
}

int8_t pipe_record_open(struct throttle_pipe *pipe, struct cost_entry *entry, const struct pipe_launch *launch)
{
	if (!record_due(pipe, entry))
		return -1;
	if (__atomic_load_n(&pipe->gap_tries, __ATOMIC_RELAXED) < GAP_TRIES && pipe_outstanding(pipe) == 0) {
		__atomic_fetch_add(&pipe->gap_tries, 1, __ATOMIC_RELAXED);
		measure_gap(pipe, launch->stream);
	}
	int8_t index = record_claim(pipe);

	if (index < 0)
		return index;
	struct throttle_record *record = &pipe->record[index];
	uint64_t now_ns = clock_ns(), ahead_ns = pipe_queued_ns(pipe, now_ns);

	record->stream = launch->stream;
	record->key = launch->key;
	record->cost_ns = launch->cost_ns;
	record->contention = launch->contention;
	record->placed = launch->placed;
	record->sole = launch->sole;
	record->mixed = launch->mixed;
	record->busy = launch->sole ? 1 : siblings_busy(device_of(pipe));
	set_others_done(record, siblings_exist() ? siblings_work(device_of(pipe)).done_ns : UINT64_MAX);
	bool free = record_chain(pipe, record);

	if (record->previous < 0) {
		uint64_t unmarked_ns = __atomic_load_n(&pipe->unmarked_ns, __ATOMIC_RELAXED);
		bool first = __atomic_load_n(&entry->tries, __ATOMIC_RELAXED) < COST_SAMPLE_FIRST;

		ahead_ns += unmarked_ns > launch->cost_ns ? unmarked_ns - launch->cost_ns : 0;
		if ((!free && !first) || driver.cuEventRecord(record->before, launch->stream) != CUDA_SUCCESS) {
			__atomic_store_n(&record->state, RECORD_FREE, __ATOMIC_RELEASE);
			return -1;
		}
	}
	record->own_ns = launch->window_left_ns == UINT64_MAX ? UINT64_MAX
	                 : launch->window_left_ns > ahead_ns  ? launch->window_left_ns - ahead_ns
	                                                      : 0;
	record->host_ns = now_ns; /* until it is known how long the call took */
	return index;
}

void pipe_record_close(struct throttle_pipe *pipe, int8_t index, bool launched)
{
	struct throttle_record *record = &pipe->record[index];
	uint64_t now_ns = clock_ns();

	if (!launched || driver.cuEventRecord(record->after, record->stream) != CUDA_SUCCESS) {
		__atomic_store_n(&record->state, RECORD_FREE, __ATOMIC_RELEASE);
		return;
	}
	record->host_ns = now_ns - record->host_ns;
	record->mixed = __atomic_exchange_n(&pipe->crowd, 0, __ATOMIC_RELAXED) || record->mixed;
	record->paid_ns = __atomic_exchange_n(&pipe->unmarked_ns, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&pipe->untimed_ns, 0, __ATOMIC_RELAXED);
	uint64_t chance = gate_mix(__atomic_add_fetch(&pipe->random, 1, __ATOMIC_RELAXED)) >> 48;

	__atomic_store_n(&pipe->record_at_ns, RECORD_EVERY_NS / 2 + RECORD_EVERY_NS * chance / 65536, __ATOMIC_RELAXED);
	add64(&pipe->inflight_ns, record->paid_ns);
	draw(&pipe->idle_at_ns, now_ns, record->paid_ns);
	uint64_t last = (uint64_t)record->sequence << 8 | (uint8_t)index;

	record_publish(pipe, record);
	__atomic_store_n(&pipe->last, last, __ATOMIC_RELEASE);
}

void pipe_settle(struct throttle_pipe *pipe, bool whole_context)
{
	/* then nothing of ours is queued any more, so what was handed over since the last marker is done too */
	if (whole_context || pipe_outstanding(pipe) == 0)
		add64(&guest_usage(device_of(pipe))->completed_ns,
		      __atomic_exchange_n(&pipe->unmarked_ns, 0, __ATOMIC_RELAXED));
}

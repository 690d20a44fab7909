/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Work in flight: per context a ring of timed records.
 *
 *   launches   L1 L2 L3 L4 | L5 L6 L7 |  (idle)   L8 |
 *   events    b1          a1         a2          b3  a3
 *   record 1   b1 -> a1: its own event before L4, the launch it was opened for: times L4 alone
 *   record 2   a1 -> a2: begins where record 1 ends, which was still running: times L5 L6 L7
 *   record 3   b3 -> a3: record 2 was over, so it has an event of its own again
 *
 * When the event behind a record completes, everything charged up to it is done. Chained records (1, 2) enclose only
 * the work charged in between: over all streams and threads of the context they add up to the time one of them was
 * busy. settle.c interprets the times.
 *
 * Records are claimed and reaped with compare-and-swap. So no lock is held over a driver call, and a thread that was
 * killed or forgotten blocks no other.
 *
 * Long because every step of a record, from its claim to its end, is a change of the same two structures.
 */
#include "interpose/compute/pipe.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "nativecommon/clock.h"
#include "interpose/compute/timing/homes.h"
#include "interpose/compute/timing/records.h"
#include "interpose/compute/rules/gate.h"
#include "interpose/compute/rules/words.h"
#include "interpose/compute/timing/settle.h"
#include "interpose/compute/timing/siblings.h"
#include "interpose/driver/driver.h"
#include "interpose/tenant/capture.h"
#include "interpose/tenant/guest.h"

#define PIPES 32                                 /* contexts of one process; more are charged but never timed */
#define RECORD_EVERY_NS UINT64_C(250000)         /* of charged work, varied at random by half */
#define RECORD_ALONE_NS UINT64_C(1000000)        /* the same while no other grant is active */
#define EARLY_PART 4                             /* part of a window in which a neighbour's last launch may end */
#define GAP_TRIES 3                              /* empty records that measure the cost of two event calls */
#define UNKNOWN_PATIENCE_NS UINT64_C(2000000000) /* limit on delaying the second launch of a new shape */

static struct throttle_pipe *pipes[PIPES]; /* published by compare-and-swap, never freed while the process lives */

static struct throttle_pipe *pipe_at(unsigned i)
{
	struct throttle_pipe *pipe = __atomic_load_n(&pipes[i], __ATOMIC_ACQUIRE), *fresh;

	if (pipe || !(fresh = calloc(1, sizeof(*fresh))))
		return pipe;
	if (__atomic_compare_exchange_n(&pipes[i], &pipe, fresh, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		return fresh;
	free(fresh); /* `pipe` now holds the winner's pipe */
	return pipe;
}

struct throttle_pipe *pipe_of_current(int device)
{
	CUcontext context = NULL;
	struct throttle_pipe *pipe;

	if (!driver.cuCtxGetCurrent || driver.cuCtxGetCurrent(&context) != CUDA_SUCCESS || !context)
		return NULL;
	/* Check all places before taking a free one: two pipes of one context would each know half of the work in
	 * flight. */
	for (unsigned i = 0; i < PIPES && (pipe = __atomic_load_n(&pipes[i], __ATOMIC_ACQUIRE)); i++)
		if (__atomic_load_n(&pipe->context, __ATOMIC_ACQUIRE) == context)
			return pipe;
	for (unsigned i = 0; i < PIPES && (pipe = pipe_at(i)); i++) {
		CUcontext owner = NULL;

		/* A second thread with the same context finds the pipe here, perhaps before its device is written. */
		if (__atomic_compare_exchange_n(&pipe->context, &owner, context, false, __ATOMIC_ACQ_REL,
		                                __ATOMIC_ACQUIRE) ||
		    owner == context) {
			__atomic_store_n(&pipe->device, device, __ATOMIC_RELAXED);
			return pipe;
		}
	}
	return NULL;
}

/* The thread that destroys another context reads the state and the home of every record at the same time. */
static void record_clear(struct throttle_record *record)
{
	__atomic_store_n(&record->home, NULL, __ATOMIC_RELAXED);
	record->before = record->after = NULL;
	record->stream = NULL;
	memset(&record->work, 0, sizeof(record->work));
	__atomic_store_n(&record->sequence, 0, __ATOMIC_RELAXED);
	record->begins_ns = record->due_ns = record->starts_ns = 0;
	__atomic_store_n(&record->ends_ns, 0, __ATOMIC_RELAXED);
	record->window_ns = record->window_ends_ns = 0;
	record->previous = 0;
	record->previous_sequence = 0;
	record->empty = record->blind = record->alone = false;
	__atomic_store_n(&record->state, RECORD_FREE, __ATOMIC_RELEASE);
}

/* The driver destroyed the events with the context: forget the handles, call no function with them. Returns the time
 * that was in flight. */
static uint64_t pipe_clear(struct throttle_pipe *pipe)
{
	uint64_t left_ns = __atomic_exchange_n(&pipe->inflight_ns, 0, __ATOMIC_RELAXED);

	for (unsigned i = 0; i < RECORDS; i++)
		record_clear(&pipe->record[i]);
	memset(pipe->foreign, 0, sizeof(pipe->foreign));
	__atomic_store_n(&pipe->probe, NULL, __ATOMIC_RELAXED);
	__atomic_store_n(&pipe->last, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&pipe->outstanding, 0, __ATOMIC_RELAXED);
	left_ns += __atomic_exchange_n(&pipe->unmarked_ns, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&pipe->context, NULL, __ATOMIC_RELEASE);
	return left_ns;
}

void pipe_home_gone(uint32_t tag)
{
	struct throttle_pipe *pipe;

	for (unsigned i = 0; i < PIPES && (pipe = __atomic_load_n(&pipes[i], __ATOMIC_ACQUIRE)); i++)
		if (__atomic_load_n(&pipe->context, __ATOMIC_ACQUIRE))
			homes_gone(pipe, tag);
}

void pipe_context_gone(uint32_t tag)
{
	struct throttle_pipe *pipe;

	pipe_home_gone(tag);
	for (unsigned i = 0; i < PIPES && (pipe = __atomic_load_n(&pipes[i], __ATOMIC_ACQUIRE)); i++) {
		CUcontext context = __atomic_load_n(&pipe->context, __ATOMIC_ACQUIRE);
		int device = device_of(pipe);

		if (!context || guest_context_tag(context) != tag)
			continue;
		uint64_t left_ns = pipe_clear(pipe);

		/* Its work is over either way: left in flight, it would make the grant look busy for ever. */
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

static int8_t record_claim(struct throttle_pipe *pipe, CUcontext home)
{
	uint32_t start = __atomic_fetch_add(&pipe->next_record, 1, __ATOMIC_RELAXED);

	for (unsigned i = 0; i < RECORDS; i++) {
		int8_t index = (int8_t)((start + i) % RECORDS);
		struct throttle_record *record = &pipe->record[index];
		uint32_t state = RECORD_FREE;

		if (!__atomic_compare_exchange_n(&record->state, &state, RECORD_CLAIMED, false, __ATOMIC_ACQUIRE,
		                                 __ATOMIC_RELAXED))
			continue;
		if (homes_settle_in(pipe, record, home)) {
			/* other threads still read it, to learn that it is not the record they remember */
			__atomic_store_n(&record->sequence, __atomic_add_fetch(&pipe->sequence, 1, __ATOMIC_RELAXED),
			                 __ATOMIC_RELEASE);
			record->previous = -1;
			record->work.chained = false;
			record->empty = false;
			record->blind = false;
			return index;
		}
		__atomic_store_n(&record->state, RECORD_FREE, __ATOMIC_RELEASE);
		break;
	}
	return -1;
}

/* False: unknown. Work of another stream may have ended before the start event: then the time is 0. */
static bool elapsed(CUevent from, CUevent to, uint64_t *ret_ns)
{
	float ms = 0;

	if (driver.cuEventElapsedTime(&ms, from, to) != CUDA_SUCCESS)
		return false;
	*ret_ns = ms > 0 ? (uint64_t)((double)ms * 1e6 + 0.5) : 0;
	return true;
}

/* When the record began, and how much of its own window was left then. The estimate at the launch is wrong by as much as
 * the lengths of the work before it; where that was timed the begin is known. The caller has checked that `previous` is
 * still the record before this one. */
static void record_place(struct throttle_record *record, const struct throttle_record *previous, uint64_t elapsed_ns)
{
	uint64_t before_ns = previous ? __atomic_load_n(&previous->ends_ns, __ATOMIC_RELAXED) : 0;
	uint64_t starts_ns = before_ns ? before_ns : record->starts_ns;
	uint64_t left_ns = gate_rest_ns(record->window_ends_ns, starts_ns);

	__atomic_store_n(&record->ends_ns, starts_ns + elapsed_ns, __ATOMIC_RELAXED);
	record->work.own_ns = record->window_ns ? left_ns : UINT64_MAX;
	record->work.early = record->window_ns && left_ns > record->window_ns - record->window_ns / EARLY_PART;
}

/* The work of a record is done: measure its time and pass it to settle.c. */
static void record_settle(struct throttle_pipe *pipe, struct throttle_record *record)
{
	const struct throttle_record *previous = record->previous >= 0 ? &pipe->record[record->previous] : NULL;
	struct cost_entry *entry = cost_lookup(record->work.key);
	uint64_t elapsed_ns;

	if (entry)
		cost_tried(entry);
	/* The sequence is read last: if the record was reused, the time above belongs to other work. */
	if (!elapsed(previous ? previous->after : record->before, record->after, &elapsed_ns) ||
	    (previous && __atomic_load_n(&previous->sequence, __ATOMIC_ACQUIRE) != record->previous_sequence))
		return;
	record_place(record, previous, elapsed_ns);
	if (!previous)
		elapsed_ns = gate_less_gap_ns(elapsed_ns, __atomic_load_n(&pipe->gap_ns, __ATOMIC_RELAXED));
	settle_work(device_of(pipe), &record->work, entry, elapsed_ns);
}

static void record_finish(struct throttle_pipe *pipe, struct throttle_record *record)
{
	add64(&guest_usage(device_of(pipe))->completed_ns, record->work.paid_ns);
	if (record->empty) {
		uint64_t gap_ns;

		if (elapsed(record->before, record->after, &gap_ns) && gap_ns &&
		    (!pipe->gap_ns || gap_ns < pipe->gap_ns))
			__atomic_store_n(&pipe->gap_ns, gap_ns, __ATOMIC_RELAXED);
	} else {
		record_settle(pipe, record);
	}
	take64(&pipe->inflight_ns, record->work.paid_ns);
	__atomic_fetch_sub(&pipe->outstanding, 1, __ATOMIC_RELAXED);
	__atomic_store_n(&record->state, RECORD_FREE, __ATOMIC_RELEASE);
}

/* The next query is due at that time, or earlier. */
static void reap_by(struct throttle_pipe *pipe, uint64_t at_ns)
{
	uint64_t old_ns = __atomic_load_n(&pipe->reap_at_ns, __ATOMIC_RELAXED);

	while (at_ns < old_ns && !__atomic_compare_exchange_n(&pipe->reap_at_ns, &old_ns, at_ns, true, __ATOMIC_RELAXED,
	                                                      __ATOMIC_RELAXED))
		;
}

/* One thread at a time; the others continue without reaping. */
void pipe_reap(struct throttle_pipe *pipe)
{
	if (__atomic_load_n(&pipe->outstanding, __ATOMIC_RELAXED) == 0 ||
	    __atomic_exchange_n(&pipe->reaping, 1, __ATOMIC_ACQUIRE))
		return;
	uint32_t first = __atomic_load_n(&pipe->next_record, __ATOMIC_RELAXED);
	uint64_t next_ns = UINT64_MAX, oldest_ns = 0;

	__atomic_store_n(&pipe->reap_at_ns, UINT64_MAX, __ATOMIC_RELAXED);
	for (unsigned i = 0; i < RECORDS; i++) { /* oldest first: a chain's start is settled before its end */
		struct throttle_record *record = &pipe->record[(first + i) % RECORDS];
		uint32_t state = RECORD_PENDING;

		if (__atomic_load_n(&record->state, __ATOMIC_RELAXED) != RECORD_PENDING ||
		    !__atomic_compare_exchange_n(&record->state, &state, RECORD_REAPING, false, __ATOMIC_ACQUIRE,
		                                 __ATOMIC_RELAXED))
			continue;
		uint64_t paid_ns = record->work.paid_ns;
		CUresult r = driver.cuEventQuery(record->after);

		if (r == CUDA_ERROR_NOT_READY) {
			next_ns = record->due_ns < next_ns ? record->due_ns : next_ns;
			oldest_ns = oldest_ns ? oldest_ns : paid_ns;
			__atomic_store_n(&record->state, RECORD_PENDING, __ATOMIC_RELEASE);
		} else {
			record_finish(pipe, record);
		}
	}
	__atomic_store_n(&pipe->oldest_ns, oldest_ns, __ATOMIC_RELAXED);
	reap_by(pipe, next_ns);
	__atomic_store_n(&pipe->reaping, 0, __ATOMIC_RELEASE);
}

void pipe_reap_due(struct throttle_pipe *pipe, uint64_t now_ns)
{
	uint64_t at_ns = __atomic_load_n(&pipe->reap_at_ns, __ATOMIC_RELAXED);

	if (now_ns < at_ns)
		return;
	pipe_reap(pipe);
	/* It is overdue, perhaps because of other grants: a query at each launch would be useless. */
	if (__atomic_load_n(&pipe->reap_at_ns, __ATOMIC_RELAXED) <= now_ns)
		__atomic_store_n(&pipe->reap_at_ns, now_ns + GATE_POLL_NS, __ATOMIC_RELAXED);
}

uint64_t pipe_inflight_ns(const struct throttle_pipe *pipe)
{
	return __atomic_load_n(&pipe->inflight_ns, __ATOMIC_RELAXED);
}

uint64_t pipe_expected_ns(const struct throttle_pipe *pipe, uint64_t now_ns)
{
	uint64_t inflight_ns = pipe_inflight_ns(pipe);
	uint64_t idle_at_ns = __atomic_load_n(&pipe->idle_at_ns, __ATOMIC_RELAXED);
	uint64_t left_ns = idle_at_ns > now_ns ? idle_at_ns - now_ns : 0;

	return left_ns < inflight_ns ? left_ns : inflight_ns;
}

uint64_t pipe_honest_ns(const struct throttle_pipe *pipe, uint64_t now_ns, uint64_t period_ns)
{
	uint64_t idle_at_ns = __atomic_load_n(&pipe->idle_at_ns, __ATOMIC_RELAXED);

	return gate_honest_ns(pipe_expected_ns(pipe, now_ns), pipe_inflight_ns(pipe),
	                      __atomic_load_n(&pipe->oldest_ns, __ATOMIC_RELAXED),
	                      now_ns > idle_at_ns ? now_ns - idle_at_ns : 0, period_ns);
}

uint32_t pipe_outstanding(const struct throttle_pipe *pipe)
{
	return __atomic_load_n(&pipe->outstanding, __ATOMIC_RELAXED);
}

uint32_t pipe_contexts(const struct throttle_pipe *own)
{
	struct throttle_pipe *pipe;
	uint32_t contexts = 1;

	for (unsigned i = 0; i < PIPES && (pipe = __atomic_load_n(&pipes[i], __ATOMIC_ACQUIRE)); i++)
		contexts += pipe != own && device_of(pipe) == device_of(own) && pipe_outstanding(pipe) > 0;
	return contexts;
}

bool pipe_held(struct throttle_pipe *pipe)
{
	bool held = false, begun = false;

	/* Only the reaping thread frees records, so while it is this one the pending ones stay as they are. */
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

void pipe_mark(struct throttle_pipe *pipe, int64_t used_ns, const void *thread)
{
	if (__atomic_load_n(&pipe->marker, __ATOMIC_RELAXED) != thread) {
		__atomic_store_n(&pipe->marker, thread, __ATOMIC_RELAXED);
		__atomic_store_n(&pipe->crowd, 1, __ATOMIC_RELAXED);
	}
	if (used_ns > 0) {
		add64(&pipe->unmarked_ns, (uint64_t)used_ns);
		add64(&pipe->untimed_ns, (uint64_t)used_ns);
	} else if (used_ns < 0)
		take64(&pipe->unmarked_ns, (uint64_t)-used_ns);
}

void pipe_await_first_sample(struct throttle_pipe *pipe, const struct cost_entry *entry, uint32_t ahead)
{
	uint64_t began_ns = clock_ns(), step_ns = 20000;

	while (__atomic_load_n(&entry->cost_ns, __ATOMIC_RELAXED) == 0 &&
	       __atomic_load_n(&pipe->outstanding, __ATOMIC_RELAXED) > ahead &&
	       clock_ns() - began_ns < UNKNOWN_PATIENCE_NS) {
		struct timespec step = { .tv_sec = 0, .tv_nsec = (long)step_ns };

		pipe_reap(pipe);
		if (__atomic_load_n(&entry->cost_ns, __ATOMIC_RELAXED) ||
		    (clock_ns() - began_ns > PIPE_HELD_PATIENCE_NS && pipe_held(pipe)))
			break;
		capture_wait();
		nanosleep(&step, NULL);
		step_ns = step_ns < 1000000 ? step_ns * 2 : step_ns;
	}
}

/* Is a record due? By charged work with some randomness, never by the clock: a fixed time would always select the
 * launch that follows a long one. */
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

/* Two events with nothing between them, on an idle stream. */
static void measure_gap(struct throttle_pipe *pipe, CUstream stream)
{
	int8_t index = record_claim(pipe, homes_find(pipe, stream));

	if (index < 0)
		return;
	struct throttle_record *record = &pipe->record[index];

	record->empty = true;
	record->due_ns = 0;
	record->work.paid_ns = 0;
	if (driver.cuEventRecord(record->before, stream) == CUDA_SUCCESS &&
	    driver.cuEventRecord(record->after, stream) == CUDA_SUCCESS)
		record_publish(pipe, record);
	else
		__atomic_store_n(&record->state, RECORD_FREE, __ATOMIC_RELEASE);
}

/* A thread that chains may read this from a record that is being reused, and detects that by the sequence. */
static void set_others_done(struct throttle_record *record, uint64_t done_ns)
{
	__atomic_store_n(&record->work.others_done_ns, done_ns, __ATOMIC_RELAXED);
}

/* Take the last record to begin where it ends, if it is still running. Only one thread may take it, or the time would
 * count twice; false: another thread has it at the moment. */
static bool record_chain(struct throttle_pipe *pipe, struct throttle_record *record)
{
	uint64_t last = __atomic_exchange_n(&pipe->last, 0, __ATOMIC_ACQ_REL);
	struct throttle_record *previous = &pipe->record[last & 0xff];

	if (!last)
		return pipe_outstanding(pipe) == 0;
	if (__atomic_load_n(&previous->sequence, __ATOMIC_RELAXED) == (uint32_t)(last >> 8) &&
	    __atomic_load_n(&previous->state, __ATOMIC_ACQUIRE) == RECORD_PENDING && previous->home == record->home &&
	    driver.cuEventQuery(previous->after) == CUDA_ERROR_NOT_READY) {
		record->previous = (int8_t)(last & 0xff);
		record->work.chained = true;
		/* its time begins where that record ends */
		set_others_done(record, __atomic_load_n(&previous->work.others_done_ns, __ATOMIC_RELAXED));
		record->previous_sequence = (uint32_t)(last >> 8);
	}
	return true;
}

/* False: no event can tell when this stream's work ends. The event of a record that chains is not moved to another
 * context, because the record begins with an event of the old one. */
static bool record_event(struct throttle_pipe *pipe, struct throttle_record *record, CUevent *event, CUstream stream)
{
	CUresult r = driver.cuEventRecord(*event, stream);
	CUcontext home;

	if (r == CUDA_SUCCESS)
		return true;
	home = homes_ask(pipe, stream);
	if (event == &record->before && home && homes_settle_in(pipe, record, home) &&
	    driver.cuEventRecord(*event, stream) == CUDA_SUCCESS)
		return true;
	if (event == &record->after && home && home != record->home)
		return false; /* the next record uses that context; the host times this one */
	guest_count_failed_record();
	return false;
}

/* Without events the host waits for the work and times it: slow, but no launch is free of charge. Frees the record and
 * returns 0, because the duration of the call is unknown. */
static uint64_t settle_blind(struct throttle_pipe *pipe, struct throttle_record *record)
{
	struct settle_work work = record->work;
	uint64_t began_ns = clock_ns(), waited_ns = 0;
	CUresult r = CUDA_ERROR_NOT_READY;

	work.paid_ns = __atomic_exchange_n(&pipe->unmarked_ns, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&pipe->untimed_ns, 0, __ATOMIC_RELAXED);
	work.chained = false;
	work.own_ns = record->window_ns ? gate_rest_ns(record->window_ends_ns, record->starts_ns) : UINT64_MAX;
	while (driver.cuStreamQuery && (r = driver.cuStreamQuery(record->stream)) == CUDA_ERROR_NOT_READY &&
	       (waited_ns = clock_ns() - began_ns) < UNKNOWN_PATIENCE_NS) {
		/* the measured time is exact to one step */
		uint64_t step_ns = waited_ns / 16 > GATE_POLL_NS ? waited_ns / 16 : GATE_POLL_NS;
		struct timespec step = { .tv_sec = 0, .tv_nsec = (long)step_ns };

		capture_wait();
		nanosleep(&step, NULL);
	}
	uint64_t elapsed_ns = clock_ns() - work.host_ns; /* since the record was opened */

	work.host_ns = 0;
	add64(&guest_usage(device_of(pipe))->completed_ns, work.paid_ns);
	if (r == CUDA_SUCCESS) {
		struct cost_entry *entry = cost_lookup(work.key);

		if (entry)
			cost_tried(entry);
		settle_work(device_of(pipe), &work, entry, elapsed_ns);
	}
	__atomic_store_n(&record->state, RECORD_FREE, __ATOMIC_RELEASE);
	return 0;
}

int8_t pipe_record_open(struct throttle_pipe *pipe, struct cost_entry *entry, const struct pipe_launch *launch)
{
	if (!record_due(pipe, entry))
		return -1;
	if (__atomic_load_n(&pipe->gap_tries, __ATOMIC_RELAXED) < GAP_TRIES && pipe_outstanding(pipe) == 0) {
		__atomic_fetch_add(&pipe->gap_tries, 1, __ATOMIC_RELAXED);
		measure_gap(pipe, launch->stream);
	}
	int8_t index = record_claim(pipe, homes_find(pipe, launch->stream));

	if (index < 0)
		return index;
	struct throttle_record *record = &pipe->record[index];
	uint64_t now_ns = clock_ns(), ahead_ns = pipe_expected_ns(pipe, now_ns);

	record->stream = launch->stream;
	record->begins_ns = launch->begins_ns;
	record->work.key = launch->key;
	record->work.kin = launch->kin;
	record->work.lent = launch->lent;
	record->work.cost_ns = launch->cost_ns;
	record->work.contention = launch->contention;
	record->work.placed = launch->placed;
	record->work.sole = launch->sole;
	/* If the unmarked time is this launch's alone, the record encloses no other work and is not mixed. */
	record->work.mixed = launch->mixed && __atomic_load_n(&pipe->unmarked_ns, __ATOMIC_RELAXED) > launch->cost_ns;
	record->work.busy = launch->sole ? 1 : siblings_busy(device_of(pipe), 0);
	set_others_done(record, siblings_exist() ? siblings_work(device_of(pipe)).done_ns : UINT64_MAX);
	record->alone = launch->alone;
	if (launch->lent) /* otherwise a deep queue of new shapes would be timed launch by launch */
		cost_tried(entry);
	bool free = record_chain(pipe, record);

	if (record->previous < 0) {
		uint64_t unmarked_ns = __atomic_load_n(&pipe->unmarked_ns, __ATOMIC_RELAXED);
		bool first = __atomic_load_n(&entry->tries, __ATOMIC_RELAXED) < COST_SAMPLE_FIRST;

		ahead_ns += unmarked_ns > launch->cost_ns ? unmarked_ns - launch->cost_ns : 0;
		if (!free && !first) {
			__atomic_store_n(&record->state, RECORD_FREE, __ATOMIC_RELEASE);
			return -1;
		}
		record->blind = !record_event(pipe, record, &record->before, launch->stream);
	}
	record->starts_ns = now_ns + ahead_ns;
	__atomic_store_n(&record->ends_ns, 0, __ATOMIC_RELAXED);
	record->window_ns = launch->window_ns;
	record->window_ends_ns = gate_add(now_ns, launch->window_left_ns);
	record->work.host_ns = now_ns; /* until the duration of the call is known */
	return index;
}

uint64_t pipe_record_close(struct throttle_pipe *pipe, int8_t index, bool launched)
{
	struct throttle_record *record = &pipe->record[index];
	uint64_t now_ns = clock_ns();

	if (!launched) {
		__atomic_store_n(&record->state, RECORD_FREE, __ATOMIC_RELEASE);
		return 0;
	}
	if (record->blind || !record_event(pipe, record, &record->after, record->stream))
		return settle_blind(pipe, record);
	uint64_t host_ns = record->work.host_ns = now_ns - record->work.host_ns;

	record->work.mixed = __atomic_exchange_n(&pipe->crowd, 0, __ATOMIC_RELAXED) || record->work.mixed;
	record->work.paid_ns = __atomic_exchange_n(&pipe->unmarked_ns, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&pipe->untimed_ns, 0, __ATOMIC_RELAXED);
	uint64_t chance = gate_mix(__atomic_add_fetch(&pipe->random, 1, __ATOMIC_RELAXED)) >> 48;

	uint64_t every_ns = record->alone ? RECORD_ALONE_NS : RECORD_EVERY_NS;

	__atomic_store_n(&pipe->record_at_ns, every_ns / 2 + every_ns * chance / 65536, __ATOMIC_RELAXED);
	add64(&pipe->inflight_ns, record->work.paid_ns);
	uint64_t begins_ns = record->begins_ns > now_ns ? record->begins_ns : now_ns;
	uint64_t idle_ns = draw(&pipe->idle_at_ns, begins_ns, record->work.paid_ns);
	uint64_t due_ns = record->due_ns = gate_tat_after_ns(idle_ns, begins_ns, record->work.paid_ns);
	uint64_t last = (uint64_t)record->sequence << 8 | (uint8_t)index;

	record_publish(pipe, record);
	reap_by(pipe, due_ns);
	__atomic_store_n(&pipe->last, last, __ATOMIC_RELEASE);
	return host_ns;
}

void pipe_settle(struct throttle_pipe *pipe, bool whole_context)
{
	/* no work of ours is queued any more, so all work since the last marker is done too */
	if (whole_context || pipe_outstanding(pipe) == 0)
		add64(&guest_usage(device_of(pipe))->completed_ns,
		      __atomic_exchange_n(&pipe->unmarked_ns, 0, __ATOMIC_RELAXED));
}

static bool is_due(const struct throttle_pipe *pipe, uint64_t now_ns)
{
	return __atomic_load_n(&pipe->context, __ATOMIC_ACQUIRE) &&
	       (pipe_outstanding(pipe) ? __atomic_load_n(&pipe->reap_at_ns, __ATOMIC_RELAXED) <= now_ns
	                               : __atomic_load_n(&pipe->unmarked_ns, __ATOMIC_RELAXED) > 0);
}

bool pipe_any_due(uint64_t now_ns)
{
	struct throttle_pipe *pipe;

	for (unsigned i = 0; i < PIPES && (pipe = __atomic_load_n(&pipes[i], __ATOMIC_ACQUIRE)); i++)
		if (is_due(pipe, now_ns))
			return true;
	return false;
}

void pipe_settle_polled(void)
{
	struct throttle_pipe *pipe;
	uint64_t now_ns = clock_ns();

	for (unsigned i = 0; i < PIPES && (pipe = __atomic_load_n(&pipes[i], __ATOMIC_ACQUIRE)); i++) {
		if (!is_due(pipe, now_ns))
			continue;
		pipe_reap_due(pipe, now_ns);
		pipe_settle(pipe, false);
		if (guest_self())
			guest_heartbeat(now_ns);
	}
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The records of a context, for the files that take them through their steps: pipe.c and homes.c. */
#ifndef SLUICE_RECORDS_H
#define SLUICE_RECORDS_H

#include <stdbool.h>
#include <stdint.h>

#include "interpose/compute/timing/settle.h"
#include "nativecommon/cuda_abi.h"

#define RECORDS 64        /* outstanding records of one context */
#define FOREIGN_STREAMS 8 /* remembered by context, as far as their hashes differ */

enum record_state { RECORD_FREE, RECORD_CLAIMED, RECORD_PENDING, RECORD_REAPING };

struct throttle_record {
	uint32_t state; /* compare-and-swap; PENDING is a release, pairs with the reaper's acquire */
	uint32_t sequence;
	CUevent before; /* created on first use, destroyed with the pipe */
	CUevent after;
	CUcontext home; /* of both events */
	CUstream stream;
	struct settle_work work;
	uint64_t begins_ns; /* as in pipe_launch */
	uint64_t
		starts_ns; /* CLOCK_MONOTONIC when its time begins: an estimate, until the record before it is settled */
	uint64_t ends_ns;  /* when it ended, once it is settled; 0 = unknown */
	uint64_t window_ns; /* length of the own window, 0 = none */
	uint64_t window_ends_ns;
	uint64_t due_ns; /* when its work should be over if no other process uses the GPU */
	bool empty;      /* two events and nothing between */
	bool blind;      /* the driver refused its events: timed by the host */
	bool alone;      /* as in pipe_launch */
	int8_t previous; /* index of the record at whose end this one begins, -1 = begins with its own event */
	uint32_t previous_sequence;
};

/* A stream of another context than the one that is current when it is used. */
struct throttle_foreign {
	CUstream stream;
	CUcontext home;
};

struct throttle_pipe {
	CUcontext context; /* NULL = free */
	int device;
	uint32_t reaping;      /* a thread is reaping */
	uint32_t outstanding;  /* PENDING records */
	uint64_t inflight_ns;  /* Σ paid_ns of PENDING records */
	uint64_t unmarked_ns;  /* charged since the last record, and not known to be done */
	uint64_t untimed_ns;   /* charged since the last record */
	uint64_t oldest_ns;    /* charge of the oldest PENDING record at the last reaping */
	uint64_t idle_at_ns;   /* when all recorded work should be done if no other process uses the GPU */
	uint64_t reap_at_ns;   /* when the oldest record should be over; at the latest then it is queried */
	uint64_t record_at_ns; /* amount of unmarked work at which the next record is due */
	uint64_t gap_ns;       /* host time between two event calls, as the GPU's clock shows it */
	uint32_t gap_tries;
	uint32_t random;
	const void *marker; /* the thread that marked last */
	uint32_t crowd;     /* several threads have marked since the last record */
	uint64_t last;      /* where the next record may begin: sequence << 8 | index, 0 = nowhere */
	uint32_t sequence;
	uint32_t next_record;
	CUevent probe; /* of switches.c */
	struct throttle_foreign foreign[FOREIGN_STREAMS];
	struct throttle_record record[RECORDS];
};

static inline int device_of(const struct throttle_pipe *pipe)
{
	return __atomic_load_n(&pipe->device, __ATOMIC_RELAXED);
}

static inline CUcontext context_of(const struct throttle_pipe *pipe)
{
	return __atomic_load_n(&pipe->context, __ATOMIC_RELAXED);
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The schedule of a simulated GPU: a pure function of the submitted work and its submission times.
 *
 * Every context has a ring of operations. timeline_advance() runs the device from its last state to `until_ns`:
 * contexts with work take turns in slices as the hardware's time-slicing does, a lone one keeps the device; inside a
 * context operations run in the order of submission. Copies between host and device have an engine of their own, which
 * contexts use in turn: they run beside other contexts' kernels, and neither need nor cause a change of contexts. The
 * result does not depend on when it is called: ten small steps and one large one give the same, so the first reader
 * computes it, and the host's scheduling jitter does not matter.
 */
#ifndef SIM_TIMELINE_H
#define SIM_TIMELINE_H

#include <stdbool.h>
#include <stdint.h>

#define SIM_CONTEXTS 64 /* live contexts of one GPU */
#define SIM_RING 1024   /* operations a context can have queued, as deep as hardware queues are */
#define SIM_BUCKETS 16  /* utilisation history: 16 x 100 ms */
#define SIM_BUCKET_NS UINT64_C(100000000)
#define SIM_FOREVER UINT64_MAX

enum sim_op_kind {
	SIM_OP_WORK,  /* takes duration_ns of the device */
	SIM_OP_COPY,  /* takes duration_ns of the copy engine */
	SIM_OP_STAMP, /* writes the device's time to a cell, takes no time */
};

struct sim_op {
	uint64_t submit_ns; /* CLOCK_MONOTONIC; 0 = not filled yet */
	uint64_t duration_ns;
	uint32_t kind;
	uint32_t cell; /* cell of the context's client, for SIM_OP_STAMP */
};

/* One context's queue. The owner fills and releases `head`; `tail` belongs to the scheduler. */
struct sim_ring {
	uint64_t head;
	struct sim_op op[SIM_RING];
};

struct sim_lane {
	uint64_t tail;    /* operations done */
	uint64_t done_ns; /* the part of the operation at tail that has run */
	uint64_t busy_ns; /* device time used so far */
	uint32_t in_use;
	uint32_t client;                 /* index of the owner */
	uint32_t bucket_ns[SIM_BUCKETS]; /* busy time of this context in each bucket of history */
};

/* The scheduler's whole state; small, so that it can be copied, computed on, and published at once. */
struct sim_schedule {
	uint64_t now_ns;
	uint64_t busy_ns;
	uint64_t slice_left_ns;
	uint64_t switch_left_ns; /* time until `loaded` can run */
	uint32_t current;        /* context that has the device */
	uint32_t loaded;         /* context whose state is on it */
	uint32_t copier;         /* context that has the copy engine */
	uint32_t unused;
	uint64_t copy_left_ns; /* of its slice */
	uint64_t copied;       /* bit c: the last operation of context c was a copy, so what follows needs no device */
	uint32_t bucket_ns[SIM_BUCKETS];
	struct sim_lane lane[SIM_CONTEXTS];
};

/* The scheduler's inputs and outputs outside its own state. */
struct sim_world {
	struct sim_ring *ring; /* [SIM_CONTEXTS] */
	uint64_t slice_ns;
	/* Duration of a context switch, while nothing runs; a kernel that is stopped in the middle has more to save. */
	uint64_t switch_ns;
#define SIM_MIDDLE_COSTS 4 /* a quarter more */
	/* Write the time to a client's stamp cell; may be called again with the same value. */
	void (*stamp)(void *context, uint32_t client, uint32_t cell, uint64_t device_ns);
	void *context;
};

void timeline_advance(struct sim_schedule *s, const struct sim_world *world, uint64_t until_ns);
/* When operation number `sequence` (1 = the first) of a context will be done if no more work is submitted; SIM_FOREVER
 * if never. Works on a copy. */
uint64_t timeline_expect(const struct sim_schedule *s, const struct sim_world *world, uint32_t context,
                         uint64_t sequence);
void timeline_open(struct sim_schedule *s, uint32_t context, uint32_t client);
void timeline_close(struct sim_schedule *s, uint32_t context);
/* Busy part of the last `window_ns` (at most 1.5 s), 0..1000; of one client, or of the device when client < 0. */
uint32_t timeline_utilization_permille(const struct sim_schedule *s, int client, uint64_t window_ns);

#endif

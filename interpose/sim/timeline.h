/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When does what run on one simulated GPU? A pure function of the queues and of the time, which is an argument.
 *
 * A lane is the queue of one context. Its operations run in submission order, whatever their stream; lanes with
 * compute work share the device in round-robin slices and a lane alone gets all of it, which is what time-sliced
 * hardware does. Nothing here takes a lock, reads a clock or knows about processes: device.c brings the queues,
 * publishes the result and may also throw it away (that is how a wait is predicted).
 */
#ifndef SIM_TIMELINE_H
#define SIM_TIMELINE_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TIMELINE_LANES 128
#define TIMELINE_RING 1024 /* operations in flight per context: about what hardware queues hold */
#define TIMELINE_LOG 64
#define TIMELINE_BUCKETS 16
#define TIMELINE_BUCKET_NS 100000000ull
#define TIMELINE_FOREVER UINT64_MAX

enum timeline_kind {
	TIMELINE_MARK,  /* takes no time: an event, the end of something */
	TIMELINE_RUN,   /* needs the compute engine for cost_ns */
	TIMELINE_DELAY, /* takes cost_ns beside it: a copy */
	TIMELINE_HOST,  /* until the process says that its host function returned */
	TIMELINE_WAIT,  /* until another lane has completed wait_ticket */
};

/* One queued operation; the process that owns the context writes everything but `finish`. */
struct timeline_op {
	uint64_t submit_ns;
	uint64_t cost_ns;
	uint64_t wait_ticket;
	uint64_t finish; /* tag of the ticket and time, see timeline_finish_pack() */
	uint16_t kind;
	uint16_t timed; /* somebody wants to know when it finished */
	uint16_t wait_device;
	uint16_t wait_lane;
	uint32_t pad[6];
};
static_assert(sizeof(struct timeline_op) == 64, "one line per operation");

struct timeline_lane {
	uint64_t epoch;    /* whose counters these are; 0 = nobody's yet */
	uint64_t done;     /* operations completed; operation n is complete when done > n */
	uint64_t left_ns;  /* of the operation at the head, valid if `started` */
	uint64_t until_ns; /* when a started delay ends */
	uint64_t busy_ns;
	uint64_t started;
	uint64_t bucket_ns[TIMELINE_BUCKETS];
};

struct timeline_completion {
	uint64_t lane;
	uint64_t ticket; /* done after it: the operation's number plus one */
	uint64_t finish_ns;
};

/* Everything the device remembers between two looks at it; timeline_copy() moves the used parts. */
struct timeline {
	uint64_t last_ns; /* simulated up to here */
	uint64_t busy_ns;
	uint64_t slice_left_ns;
	uint64_t running; /* the lane whose turn it is */
	uint64_t bucket;  /* number of the newest bucket in bucket_ns */
	uint64_t bucket_ns[TIMELINE_BUCKETS];
	uint64_t lanes; /* lanes ever used */
	uint64_t logged;
	struct timeline_completion log[TIMELINE_LOG]; /* timed completions of the last step */
	struct timeline_lane lane[TIMELINE_LANES];
};

/* One queue as seen at the start of a step. */
struct timeline_queue {
	const struct timeline_op *ring;
	uint64_t tail;     /* operations submitted */
	uint64_t dropped;  /* operations below this number are cancelled */
	uint64_t host;     /* host functions that returned: the ticket of the last one */
	uint64_t host_ns;  /* and when */
	uint64_t epoch;
	bool live;
};

struct timeline_input {
	const struct timeline_queue *queue;
	uint64_t queues;
	uint64_t slice_ns;
	/* Has lane `op->wait_lane` of `op->wait_device` completed `op->wait_ticket`? */
	bool (*passed)(const void *arg, const struct timeline *now, const struct timeline_op *op);
	const void *arg;
};

/* Start value for a device that comes into being at `now_ns`. */
void timeline_init(struct timeline *t, uint64_t now_ns);

/* `from` may be changing: the caller finds out and tries again, but nothing outside the two is touched. */
void timeline_copy(struct timeline *to, const struct timeline *from);

/*
 * Simulate to `now_ns`. Stops earlier, with last_ns < now_ns, when the log is full: publish the log and go on. With
 * `stop_lane` < TIMELINE_LANES it also stops once that lane has completed `stop_ticket`.
 */
void timeline_advance(struct timeline *t, const struct timeline_input *in, uint64_t now_ns, uint64_t stop_lane,
                      uint64_t stop_ticket);

/* Busy time within the last `buckets` complete buckets; `lane` may be TIMELINE_LANES for the whole device. */
uint64_t timeline_recent_ns(const struct timeline *t, uint64_t lane, unsigned buckets);

/*
 * A finish time with the ticket it belongs to, in one word: the upper 16 bits are the ticket's, the rest the time
 * modulo 2^48 ns (78 h). One word, so that a compare-and-swap can refuse a writer who is late by a whole ring.
 */
static inline uint64_t timeline_finish_pack(uint64_t ticket, uint64_t finish_ns)
{
	return ticket << 48 | (finish_ns & ((1ull << 48) - 1));
}

/* The time in `packed`, given any time at most 78 h before it. */
static inline uint64_t timeline_finish_ns(uint64_t packed, uint64_t before_ns)
{
	return before_ns + ((packed - before_ns) & ((1ull << 48) - 1));
}

#endif

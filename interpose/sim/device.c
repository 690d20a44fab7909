/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shared side of a device: moving its state forward without locks, waiting for it, and counting its memory.
 *
 * Anybody who wants to know something computes the next state in a buffer of his own and swaps it in; whoever loses
 * the race takes the winner's. A client that is killed or frozen at any instruction leaves the old state or the new.
 * What a step completed is in its log, so the next one can finish publishing it.
 */
#define _GNU_SOURCE
#include "interpose/sim/device.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <time.h>

#define CHECK_NS 1000000u        /* how long a dead client's queue may go on running */
#define SPIN_NS 60000u           /* the end of a wait, which a sleep would overshoot */
#define ALONE_HORIZON_NS 50000000u /* longest sleep when nothing but a death can change the prediction */
#define SHARED_HORIZON_NS 5000000u /* and when a neighbour may stop early */
#define BLOCKED_SLEEP_NS 200000u /* between looks when the end depends on a host function or another device */

/* Threads of one process take turns: the buffers belong to the client. */
static pthread_mutex_t locks[SIM_DEVICES] = { [0 ... SIM_DEVICES - 1] = PTHREAD_MUTEX_INITIALIZER };

static struct timeline *active_buffer(unsigned device, uint64_t active)
{
	return sim_node_buffer(device, (active & 0xffff) >> 1, active & 1);
}

/* The buffer of ours in which the next state may be computed. */
static unsigned spare(uint64_t active)
{
	return (active & 0xffff) >> 1 == sim_slot ? !(active & 1) : 0;
}

/* Copy the newest state, return its word. */
static uint64_t load(unsigned device, struct timeline *to)
{
	struct sim_device *d = &sim_node->device[device];

	for (;;) {
		/* T2: pairs with the swap in step(): the buffer was complete before it became active */
		uint64_t active = __atomic_load_n(&d->active, __ATOMIC_ACQUIRE);

		timeline_copy(to, active_buffer(device, active));
		/* a buffer is rewritten only after another became active: unchanged means unharmed */
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
		if (__atomic_load_n(&d->active, __ATOMIC_RELAXED) == active)
			return active;
	}
}

static void raise(uint64_t *word, uint64_t value)
{
	uint64_t seen = __atomic_load_n(word, __ATOMIC_RELAXED);

	/* T1: pairs with the acquire load in sim_lane_done(): finish times come before the count */
	while (seen < value &&
	       !__atomic_compare_exchange_n(word, &seen, value, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
		;
}

/* Make a step's completions visible. Harmless to repeat, and to do late: see timeline_finish_pack(). */
static void publish(unsigned device, const struct timeline *t, uint64_t version)
{
	struct sim_device *d = &sim_node->device[device];

	if (__atomic_load_n(&d->applied, __ATOMIC_ACQUIRE) >= version)
		return;
	for (uint64_t i = 0; i < t->logged; i++) {
		const struct timeline_completion *c = &t->log[i];
		struct timeline_op *op = &sim_node_ring(device, (unsigned)c->lane)[(c->ticket - 1) % TIMELINE_RING];
		uint64_t unset = timeline_finish_pack(c->ticket, 0), set = timeline_finish_pack(c->ticket, c->finish_ns);

		__atomic_compare_exchange_n(&op->finish, &unset, set == unset ? set + 1 : set, false, __ATOMIC_RELAXED,
		                            __ATOMIC_RELAXED);
	}
	for (uint64_t i = 0; i < t->lanes; i++)
		raise(&d->lane[i].done, t->lane[i].done);
	raise(&d->applied, version);
}

static bool passed(const void *arg, const struct timeline *now, const struct timeline_op *op)
{
	unsigned device = *(const unsigned *)arg;
	const struct sim_lane *lane;

	if (op->wait_device == device)
		return op->wait_lane >= now->lanes || now->lane[op->wait_lane].done >= op->wait_ticket;
	if (op->wait_device >= sim_node->devices || op->wait_lane >= TIMELINE_LANES)
		return true;
	lane = &sim_node->device[op->wait_device].lane[op->wait_lane];
	return __atomic_load_n(&lane->done, __ATOMIC_ACQUIRE) >= op->wait_ticket ||
	       !sim_owner_live(__atomic_load_n(&lane->owner, __ATOMIC_RELAXED));
}

struct view {
	struct timeline_queue queue[TIMELINE_LANES];
	struct timeline_input input;
	unsigned device;
	unsigned pending; /* lanes with queued work */
};

static void look(unsigned device, const struct timeline *t, struct view *v)
{
	struct sim_device *d = &sim_node->device[device];

	v->device = device;
	v->pending = 0;
	v->input = (struct timeline_input){ .queue = v->queue, .slice_ns = sim_node->knobs.slice_ns, .passed = passed,
		                            .arg = &v->device };
	v->input.queues = __atomic_load_n(&d->lanes, __ATOMIC_ACQUIRE);
	for (unsigned i = 0; i < v->input.queues; i++) {
		struct sim_lane *lane = &d->lane[i];
		struct timeline_queue *q = &v->queue[i];

		/* T3: pairs with the release store of a set-up lane's owner in sim_lane_claim() */
		q->live = sim_owner_live(__atomic_load_n(&lane->owner, __ATOMIC_ACQUIRE));
		q->epoch = lane->epoch;
		q->dropped = __atomic_load_n(&lane->dropped, __ATOMIC_RELAXED);
		/* T4: pairs with the release store of `host` after a host function returned */
		q->host = __atomic_load_n(&lane->host, __ATOMIC_ACQUIRE);
		q->host_ns = lane->host_ns;
		/* T5: pairs with the release store of `tail` in submit(): the operations below it are complete */
		q->tail = __atomic_load_n(&lane->tail, __ATOMIC_ACQUIRE);
		q->ring = sim_node_ring(device, i);
		v->pending += q->live && q->tail > (i < t->lanes ? t->lane[i].done : 0);
	}
}

/* A dead client's queued work must stop; ask the kernel about those with work, seldom enough to cost nothing. */
static void bury(unsigned device, const struct timeline *t, uint64_t now_ns)
{
	struct sim_device *d = &sim_node->device[device];
	uint64_t checked_ns = __atomic_load_n(&d->checked_ns, __ATOMIC_RELAXED);

	if (now_ns < checked_ns + CHECK_NS)
		return;
	__atomic_store_n(&d->checked_ns, now_ns, __ATOMIC_RELAXED);
	for (unsigned i = 0; i < t->lanes; i++) {
		struct sim_lane *lane = &d->lane[i];

		if (__atomic_load_n(&lane->tail, __ATOMIC_RELAXED) > t->lane[i].done)
			sim_client_check((uint32_t)__atomic_load_n(&lane->owner, __ATOMIC_RELAXED) >> 2);
	}
}

/* One step towards `now_ns`; true once the device is there. */
static bool step(unsigned device, uint64_t now_ns)
{
	struct sim_device *d = &sim_node->device[device];
	struct timeline *mine;
	struct view v;
	uint64_t active, next;
	unsigned which = spare(__atomic_load_n(&d->active, __ATOMIC_RELAXED));

	mine = sim_node_buffer(device, sim_slot, which);
	active = load(device, mine);
	if (which != spare(active))
		return false; /* ours became active meanwhile: it was a dying predecessor's */
	publish(device, mine, active >> 16);
	bury(device, mine, now_ns);
	look(device, mine, &v);
	timeline_advance(mine, &v.input, now_ns, TIMELINE_LANES, 0);
	next = (active >> 16) + 1;
	/* T2: pairs with the acquire load in load() */
	if (!__atomic_compare_exchange_n(&d->active, &active, next << 16 | sim_slot << 1 | which, false,
	                                 __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
		return false;
	publish(device, mine, next);
	return mine->last_ns >= now_ns;
}

void sim_device_advance(unsigned device, uint64_t now_ns)
{
	pthread_mutex_lock(&locks[device]);
	while (!step(device, now_ns))
		;
	pthread_mutex_unlock(&locks[device]);
}

void sim_devices_advance(uint64_t now_ns)
{
	for (unsigned i = 0; i < sim_node->devices; i++)
		sim_device_advance(i, now_ns);
}

void sim_device_state(unsigned device, struct timeline *ret_state)
{
	load(device, ret_state);
}

/*
 * When will `lane` have completed `ticket`, as the queues are now? Plays the device forward in the spare buffer and
 * never publishes it. Looks at most `horizon` far; *ret_blocked says that time alone will not get it there.
 */
static uint64_t predict(unsigned device, unsigned lane, uint64_t ticket, uint64_t now_ns, bool *ret_blocked)
{
	struct timeline *mine;
	struct view v;
	uint64_t active, horizon_ns, done;

	pthread_mutex_lock(&locks[device]);
	mine = sim_node_buffer(device, sim_slot, spare(__atomic_load_n(&sim_node->device[device].active, __ATOMIC_RELAXED)));
	active = load(device, mine);
	if (mine == active_buffer(device, active)) { /* cannot be: only we make ours active, and we hold the lock */
		pthread_mutex_unlock(&locks[device]);
		return now_ns;
	}
	look(device, mine, &v);
	horizon_ns = now_ns + (v.pending > 1 ? SHARED_HORIZON_NS : ALONE_HORIZON_NS);
	while (mine->last_ns < horizon_ns) {
		timeline_advance(mine, &v.input, horizon_ns, lane, ticket);
		if (mine->lane[lane].done >= ticket)
			break;
	}
	done = mine->lane[lane].done;
	*ret_blocked = done < ticket && !mine->lane[lane].started;
	horizon_ns = mine->last_ns;
	pthread_mutex_unlock(&locks[device]);
	return horizon_ns;
}

static void sleep_until(uint64_t at_ns)
{
	struct timespec t = { .tv_sec = (time_t)(at_ns / 1000000000u), .tv_nsec = (long)(at_ns % 1000000000u) };

	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
}

bool sim_lane_wait(unsigned device, unsigned lane, uint64_t ticket)
{
	for (;;) {
		uint64_t now_ns = sim_now_ns(), at_ns;
		bool blocked = false;

		if (sim_lane_done(device, lane) >= ticket)
			return true;
		if (__atomic_load_n(&sim_node->knobs.lost[device], __ATOMIC_RELAXED))
			return false;
		sim_device_advance(device, now_ns);
		if (sim_lane_done(device, lane) >= ticket)
			return true;
		at_ns = predict(device, lane, ticket, now_ns, &blocked);
		if (blocked) {
			sim_devices_advance(now_ns);
			if (sim_lane_done(device, lane) < ticket)
				sleep_until(now_ns + BLOCKED_SLEEP_NS);
		} else if (at_ns > now_ns + 2 * SPIN_NS) {
			sleep_until(at_ns - SPIN_NS);
		} else {
			while (sim_now_ns() < at_ns && sim_lane_done(device, lane) < ticket)
				sched_yield();
		}
	}
}

int sim_lane_claim(unsigned device)
{
	struct sim_device *d = &sim_node->device[device];
	uint64_t setup = sim_owner_word(SLOT_CLAIMED);

	sim_clients_reap();
	for (unsigned i = 0; i < TIMELINE_LANES; i++) {
		struct sim_lane *lane = &d->lane[i];
		uint64_t owner = __atomic_load_n(&lane->owner, __ATOMIC_ACQUIRE), seen = 0;

		if (sim_owner_live(owner) ||
		    (sim_slot_state(owner) == SLOT_CLAIMED && sim_owner_live(owner - SLOT_CLAIMED + SLOT_LIVE)))
			continue;
		if (!__atomic_compare_exchange_n(&lane->owner, &owner, setup, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
			continue;
		/* Numbers go on where the last owner stopped: nothing that still speaks of it can be mistaken for ours. */
		__atomic_store_n(&lane->dropped, __atomic_load_n(&lane->tail, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
		__atomic_store_n(&lane->host, __atomic_load_n(&lane->tail, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
		lane->epoch++;
		while (seen <= i && !__atomic_compare_exchange_n(&d->lanes, &seen, i + 1, false, __ATOMIC_ACQ_REL,
		                                                 __ATOMIC_RELAXED))
			;
		/* T3: pairs with the acquire load in look() */
		__atomic_store_n(&lane->owner, sim_owner_word(SLOT_LIVE), __ATOMIC_RELEASE);
		sim_device_advance(device, sim_now_ns()); /* past the dropped operations */
		return (int)i;
	}
	return -EUSERS;
}

void sim_lane_release(unsigned device, unsigned lane)
{
	struct sim_lane *l = &sim_node->device[device].lane[lane];

	__atomic_store_n(&l->dropped, __atomic_load_n(&l->tail, __ATOMIC_RELAXED), __ATOMIC_RELEASE);
	sim_device_advance(device, sim_now_ns());
	__atomic_store_n(&l->owner, 0, __ATOMIC_RELEASE);
}

uint64_t sim_memory_used(unsigned device, bool reap)
{
	uint64_t clients, sum = 0;

	if (reap)
		sim_clients_reap();
	clients = __atomic_load_n(&sim_node->clients, __ATOMIC_SEQ_CST);
	for (unsigned i = 0; i < clients && i < SIM_CLIENTS; i++) {
		struct sim_client *c = &sim_node->client[i];

		/* N2: pairs with the release store in claim_slot() */
		if (sim_slot_state(__atomic_load_n(&c->state, __ATOMIC_ACQUIRE)) == SLOT_LIVE)
			sum += __atomic_load_n(&c->used_bytes[device], __ATOMIC_SEQ_CST);
	}
	return sum;
}

bool sim_memory_take(unsigned device, uint64_t bytes)
{
	uint64_t *used = &sim_node->client[sim_slot].used_bytes[device];
	uint64_t total = sim_node->device[device].model.total_bytes;

	if (bytes > total)
		return false;
	/*
	 * Count first, then look: two that race for the last bytes both see both (the total order of the seq_cst
	 * operations), so at most one stays. A loser tries again in case they only got in each other's way.
	 */
	for (unsigned attempt = 0; attempt < 4; attempt++) {
		__atomic_fetch_add(used, bytes, __ATOMIC_SEQ_CST);
		if (sim_memory_used(device, false) <= total)
			return true;
		__atomic_fetch_sub(used, bytes, __ATOMIC_SEQ_CST);
		if (sim_memory_used(device, true) + bytes > total && attempt > 0)
			return false;
		for (unsigned i = 0; i < (sim_slot * 7 + attempt * 13) % 32; i++)
			sched_yield();
	}
	return false;
}

void sim_memory_give(unsigned device, uint64_t bytes)
{
	__atomic_fetch_sub(&sim_node->client[sim_slot].used_bytes[device], bytes, __ATOMIC_SEQ_CST);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The producer side of a context's queue, and the waits for it.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdlib.h>

#include "interpose/sim/control.h"
#include "interpose/sim/objects.h"

/* Held for a few stores; the yield is for the thread that was preempted inside. */
static void lock(struct context *ctx)
{
	for (unsigned n = 0; __atomic_exchange_n(&ctx->submit_lock, 1, __ATOMIC_ACQUIRE); n++)
		if (n % 64 == 63)
			sched_yield();
}

static void unlock(struct context *ctx)
{
	__atomic_store_n(&ctx->submit_lock, 0, __ATOMIC_RELEASE);
}

/* The finish time of a completed entry. Called with the lock. */
static uint64_t ring_finish_ns(const struct event *e)
{
	uint64_t number = e->ticket - 1;
	uint64_t packed = __atomic_load_n(&e->recorded_in->ring[number % TIMELINE_RING].finish, __ATOMIC_RELAXED);

	return timeline_finish_ns(packed, e->submit_ns);
}

/* The ring entry of operation `number` is about to be used again: its event takes the time along. Called with the lock. */
static void harvest(struct context *ctx, uint64_t number)
{
	struct event **waiting = &ctx->waiting[number % TIMELINE_RING], *e = *waiting;

	*waiting = NULL;
	if (e && e->recorded_in == ctx && e->ticket == number + 1 && e->finish_ns == 0)
		e->finish_ns = ring_finish_ns(e);
}

void submit_harvest(struct context *ctx)
{
	uint64_t done = sim_lane_done(ctx->device, ctx->lane);

	lock(ctx);
	for (uint64_t n = ctx->tail > TIMELINE_RING ? ctx->tail - TIMELINE_RING : 0; n < ctx->tail && n < done; n++)
		harvest(ctx, n);
	unlock(ctx);
}

static void wait_for_room(struct context *ctx)
{
	while (ctx->tail - ctx->done_seen >= TIMELINE_RING) {
		ctx->done_seen = sim_lane_done(ctx->device, ctx->lane);
		if (ctx->tail - ctx->done_seen < TIMELINE_RING)
			return;
		uint64_t ticket = ctx->tail - TIMELINE_RING + 1;

		unlock(ctx);
		bool lost = !sim_lane_wait(ctx->device, ctx->lane, ticket);

		lock(ctx);
		if (lost)
			return;
	}
}

/* A knob may want this launch never to end. */
static bool hangs(unsigned device)
{
	uint64_t *left = &sim_node->knobs.hang_kernels[device], n = __atomic_load_n(left, __ATOMIC_RELAXED);

	while (n && !__atomic_compare_exchange_n(left, &n, n - 1, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		;
	return n != 0;
}

uint64_t submit(struct stream *stream, const struct submission *s)
{
	struct context *ctx = stream->ctx;
	struct timeline_op *op;
	uint64_t number, now_ns;

	lock(ctx);
	if (!LIKELY(ctx->tail - ctx->done_seen < TIMELINE_RING))
		wait_for_room(ctx);
	number = ctx->tail;
	op = &ctx->ring[number % TIMELINE_RING];
	if (ctx->waiting[number % TIMELINE_RING])
		harvest(ctx, number - TIMELINE_RING);
	now_ns = sim_now_ns();
	op->submit_ns = now_ns;
	op->cost_ns = s->cost_ns;
	op->kind = (uint16_t)s->kind;
	op->timed = s->event != NULL;
	if (s->kind == TIMELINE_WAIT) {
		op->wait_device = (uint16_t)s->wait_device;
		op->wait_lane = (uint16_t)s->wait_lane;
		op->wait_ticket = s->wait_ticket;
	} else if (s->kind == TIMELINE_RUN && !LIKELY(!sim_node->knobs.armed) && hangs(ctx->device)) {
		op->cost_ns = TIMELINE_FOREVER;
	}
	op->finish = timeline_finish_pack(number + 1, 0);
	if (s->event) {
		s->event->recorded_in = ctx;
		s->event->ticket = number + 1;
		s->event->submit_ns = now_ns;
		s->event->finish_ns = 0;
		ctx->waiting[number % TIMELINE_RING] = s->event;
	}
	stream->last = number + 1;
	ctx->tail = number + 1;
	/* T5: pairs with the acquire load in look(): the operation is complete before it is counted */
	__atomic_store_n(&ctx->shared->tail, number + 1, __ATOMIC_RELEASE);
	unlock(ctx);
	sim_control_poll(now_ns);
	return number + 1;
}

CUresult context_wait(struct context *ctx, uint64_t ticket)
{
	sim_control_poll(sim_now_ns());
	return sim_lane_wait(ctx->device, ctx->lane, ticket) ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}

bool context_passed(struct context *ctx, uint64_t ticket)
{
	uint64_t now_ns;

	if (sim_lane_done(ctx->device, ctx->lane) >= ticket)
		return true;
	now_ns = sim_now_ns();
	sim_control_poll(now_ns);
	sim_device_advance(ctx->device, now_ns);
	return sim_lane_done(ctx->device, ctx->lane) >= ticket;
}

uint64_t event_finish_ns(struct event *e)
{
	struct context *ctx = e->recorded_in;
	uint64_t finish_ns;

	if (!ctx)
		return 0;
	lock(ctx);
	if (e->finish_ns == 0 && object_is(ctx, OBJECT_CONTEXT) && sim_lane_done(ctx->device, ctx->lane) >= e->ticket)
		e->finish_ns = ring_finish_ns(e);
	finish_ns = e->finish_ns;
	unlock(ctx);
	return finish_ns;
}

/* --- host functions: one thread calls each when its turn has come ------------------------------------------------ */

#define HOST_POLL_NS 100000 /* between looks while some are queued and none is due */

struct host_call {
	struct host_call *next;
	struct context *ctx;
	uint64_t ticket;
	void (*function)(void *);
	void *arg;
};

static pthread_mutex_t host_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t host_wanted = PTHREAD_COND_INITIALIZER;
static struct host_call *host_calls;
static bool host_running;

/* Unlink a call whose turn it is: all operations before it are complete. Called with the lock. */
static struct host_call *due(void)
{
	for (struct host_call **at = &host_calls; *at; at = &(*at)->next) {
		struct host_call *call = *at;

		if (!context_passed(call->ctx, call->ticket - 1))
			continue;
		*at = call->next;
		return call;
	}
	return NULL;
}

static void *host_thread(void *unused)
{
	const struct timespec pause = { .tv_nsec = HOST_POLL_NS };

	(void)unused;
	for (;;) {
		struct host_call *call;
		struct sim_lane *lane;

		pthread_mutex_lock(&host_lock);
		while (!host_calls)
			pthread_cond_wait(&host_wanted, &host_lock);
		call = due();
		pthread_mutex_unlock(&host_lock);
		if (!call) {
			nanosleep(&pause, NULL);
			continue;
		}
		call->function(call->arg);
		lane = call->ctx->shared;
		lane->host_ns = sim_now_ns();
		/* T4: pairs with the acquire load in look() */
		__atomic_store_n(&lane->host, call->ticket, __ATOMIC_RELEASE);
		free(call);
	}
	return NULL;
}

static bool host_start(void)
{
	pthread_attr_t attr;
	pthread_t id;

	pthread_mutex_lock(&host_lock);
	if (!host_running) {
		pthread_attr_init(&attr);
		pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
		host_running = pthread_create(&id, &attr, host_thread, NULL) == 0;
		pthread_attr_destroy(&attr);
	}
	pthread_mutex_unlock(&host_lock);
	return host_running;
}

CUresult submit_host(struct stream *stream, void (*function)(void *), void *arg)
{
	struct submission s = { .kind = TIMELINE_HOST };
	struct host_call *call = malloc(sizeof(*call));

	if (!call)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (!host_start()) {
		free(call);
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
	*call = (struct host_call){ .ctx = stream->ctx, .function = function, .arg = arg };
	/* Not under the lock: this may wait for room in the queue, which a host function must make. */
	call->ticket = submit(stream, &s);
	pthread_mutex_lock(&host_lock);
	call->next = host_calls;
	host_calls = call;
	pthread_cond_signal(&host_wanted);
	pthread_mutex_unlock(&host_lock);
	return CUDA_SUCCESS;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The queues of held streams: see hold.h. */
#include "simgpu/cuda/streams/streams.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "simgpu/cuda/base/queue.h"

#define LOOK_EVERY_NS 20000 /* how late a held stream may notice: the cost of polling from a host, not of a card's */
#define LOST_EVERY_NS 10000000L /* how often a thread that waits for a stream checks whether the card still exists */

struct sim_held {
	uint64_t ticket; /* one order for the whole process */
	sim_ready *ready;
	sim_act *act;
	struct sim_held *next;
	_Alignas(16) unsigned char argument[];
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER; /* signalled when an entry is done or dropped */
static struct CUstream_st *held;                        /* streams with a queue, or with an entry in progress */
static uint64_t tickets;
static bool looking; /* the polling thread is running */

uint32_t sim_held_streams; /* length of that list */

/* --- with the mutex held ------------------------------------------------------------------------------------------ */

static struct CUstream_st *find(const struct CUstream_st *stream)
{
	struct CUstream_st *s = held;

	while (s && s != stream)
		s = s->next_held;
	return s;
}

/* The first entry that is not done, UINT64_MAX: none. */
static uint64_t first_ticket(const struct CUstream_st *s)
{
	return s->doing ? s->doing : s->held ? s->held->ticket : UINT64_MAX;
}

bool sim_hold_past(const struct CUstream_st *stream, uint64_t ticket)
{
	const struct CUstream_st *s = find(stream);

	return !s || first_ticket(s) > ticket;
}

/* True if work on `other` comes before later work on `s`. The legacy stream and blocking streams wait for each
 * other. */
static bool ordered(const struct CUstream_st *other, const struct CUstream_st *s)
{
	const struct CUstream_st *legacy = &s->context->legacy;

	if (other == s || other->context != s->context)
		return other == s;
	return (s == legacy && !(other->flags & CU_STREAM_NON_BLOCKING)) ||
	       (other == legacy && !(s->flags & CU_STREAM_NON_BLOCKING));
}

/* True if an entry below `ticket` must precede work on the stream (NULL: on any stream of the context). */
static bool behind(const struct CUctx_st *context, const struct CUstream_st *stream, uint64_t ticket)
{
	for (const struct CUstream_st *s = held; s; s = s->next_held)
		if ((stream ? ordered(s, stream) : s->context == context) && first_ticket(s) < ticket)
			return true;
	return false;
}

static void leave(struct CUstream_st *stream)
{
	for (struct CUstream_st **at = &held; *at; at = &(*at)->next_held) {
		if (*at == stream) {
			*at = stream->next_held;
			break;
		}
	}
	__atomic_fetch_sub(&sim_held_streams, 1, __ATOMIC_RELEASE);
	if (stream->orphan)
		free(stream);
}

/* Run the first entry of one stream that can continue. The mutex is released meanwhile; false: none can. */
static bool one(void)
{
	for (struct CUstream_st *s = held; s; s = s->next_held) {
		struct sim_held *h = s->held;

		if (!h || s->doing || behind(NULL, s, h->ticket) || (h->ready && !h->ready(s, h->argument)))
			continue;
		s->held = h->next;
		s->doing = h->ticket;
		pthread_mutex_unlock(&mutex);
		if (h->act)
			h->act(s, h->argument);
		free(h);
		pthread_mutex_lock(&mutex);
		s->doing = 0;
		if (!s->held)
			leave(s);
		pthread_cond_broadcast(&moved);
		return true;
	}
	return false;
}

static void *look(void *unused)
{
	(void)unused;
	pthread_mutex_lock(&mutex);
	while (held) {
		if (one())
			continue;
		pthread_mutex_unlock(&mutex);
		nanosleep(&(struct timespec){ .tv_nsec = LOOK_EVERY_NS }, NULL);
		pthread_mutex_lock(&mutex);
	}
	looking = false;
	pthread_mutex_unlock(&mutex);
	return NULL;
}

static bool looked_after(void)
{
	pthread_attr_t attributes;
	sigset_t all, old;
	pthread_t thread;

	if (looking)
		return true;
	if (pthread_attr_init(&attributes))
		return false;
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	sigfillset(&all); /* the program's signals are for its own threads */
	pthread_sigmask(SIG_SETMASK, &all, &old);
	looking = pthread_create(&thread, &attributes, look, NULL) == 0;
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&attributes);
	return looking;
}

/* --- called from other files -------------------------------------------------------------------------------------- */

bool sim_hold_look(struct CUstream_st *stream)
{
	pthread_mutex_lock(&mutex);
	bool is = behind(NULL, stream, UINT64_MAX);

	pthread_mutex_unlock(&mutex);
	return is;
}

CUresult sim_hold(struct CUstream_st *stream, sim_ready *ready, sim_act *act, const void *argument, size_t bytes,
                  uint64_t *ret_ticket)
{
	struct sim_held *h = malloc(sizeof(*h) + bytes), **at;

	if (!h)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*h = (struct sim_held){ .ready = ready, .act = act };
	if (bytes)
		memcpy(h->argument, argument, bytes);
	pthread_mutex_lock(&mutex);
	if (!looked_after()) {
		pthread_mutex_unlock(&mutex);
		free(h);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	h->ticket = ++tickets;
	if (ret_ticket)
		*ret_ticket = h->ticket;
	if (!find(stream)) {
		stream->next_held = held;
		held = stream;
		__atomic_fetch_add(&sim_held_streams, 1, __ATOMIC_RELEASE);
	}
	for (at = &stream->held; *at; at = &(*at)->next)
		;
	*at = h;
	pthread_mutex_unlock(&mutex);
	return CUDA_SUCCESS;
}

static void act_work(struct CUstream_st *stream, void *argument)
{
	uint64_t duration_ns;

	memcpy(&duration_ns, argument, sizeof(duration_ns));
	stream->last = sim_submit(stream->context, SIM_OP_WORK, duration_ns, 0);
}

CUresult sim_hold_work(struct CUstream_st *stream, uint64_t duration_ns)
{
	return sim_hold(stream, NULL, act_work, &duration_ns, sizeof(duration_ns), NULL);
}

bool sim_ready_idle(struct CUstream_st *stream, const void *argument)
{
	(void)argument;
	return stream->context->gpu->lost || sim_done(stream->context, stream->last);
}

bool sim_hold_pending(const struct CUstream_st *stream, uint64_t ticket)
{
	if (__atomic_load_n(&sim_held_streams, __ATOMIC_ACQUIRE) == 0)
		return false;
	pthread_mutex_lock(&mutex);
	bool past = sim_hold_past(stream, ticket);

	pthread_mutex_unlock(&mutex);
	return !past;
}

void sim_hold_wait_for(const struct CUstream_st *stream, uint64_t ticket)
{
	pthread_mutex_lock(&mutex);
	while (!sim_hold_past(stream, ticket))
		pthread_cond_wait(&moved, &mutex);
	pthread_mutex_unlock(&mutex);
}

void sim_hold_cancel(struct CUstream_st *stream, uint64_t ticket)
{
	pthread_mutex_lock(&mutex);
	struct CUstream_st *s = find(stream);

	for (struct sim_held *h = s ? s->held : NULL; h; h = h->next)
		if (h->ticket == ticket)
			h->act = NULL;
	while (s && s->doing == ticket) {
		pthread_cond_wait(&moved, &mutex);
		s = find(stream);
	}
	pthread_mutex_unlock(&mutex);
}

CUresult sim_hold_wait(struct CUctx_st *context, struct CUstream_st *stream)
{
	CUresult result = CUDA_SUCCESS;

	if (__atomic_load_n(&sim_held_streams, __ATOMIC_ACQUIRE) == 0)
		return CUDA_SUCCESS;
	pthread_mutex_lock(&mutex);
	uint64_t now = tickets + 1;

	while (behind(context, stream, now)) {
		struct timespec until;

		if (context->gpu->lost) {
			result = CUDA_ERROR_DEVICE_UNAVAILABLE;
			break;
		}
		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_nsec += LOST_EVERY_NS;
		if (until.tv_nsec >= 1000000000L) {
			until.tv_sec++;
			until.tv_nsec -= 1000000000L;
		}
		pthread_cond_timedwait(&moved, &mutex, &until);
	}
	pthread_mutex_unlock(&mutex);
	return result;
}

bool sim_hold_orphan(struct CUstream_st *stream)
{
	pthread_mutex_lock(&mutex);
	bool is = find(stream) != NULL;

	stream->orphan = is;
	pthread_mutex_unlock(&mutex);
	return is;
}

void sim_hold_drop(struct CUctx_st *context)
{
	if (__atomic_load_n(&sim_held_streams, __ATOMIC_ACQUIRE) == 0)
		return;
	pthread_mutex_lock(&mutex);
	for (struct CUstream_st *s = held, *next; s; s = next) {
		next = s->next_held;
		if (s->context != context)
			continue;
		for (struct sim_held *h; (h = s->held);) {
			s->held = h->next;
			free(h);
		}
		if (s->doing) { /* the thread removes it from the list; the queue may have changed meanwhile */
			pthread_cond_wait(&moved, &mutex);
			next = held;
		} else {
			leave(s);
		}
	}
	pthread_cond_broadcast(&moved);
	pthread_mutex_unlock(&mutex);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Streams: the handles, the default ones, and waiting for them. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "interpose/sim/hold.h"

static pthread_mutex_t list_mutex = PTHREAD_MUTEX_INITIALIZER;

static struct CUstream_st *stream_make(struct CUctx_st *context, unsigned flags, int priority, pid_t thread)
{
	struct CUstream_st *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	*s = (struct CUstream_st){
		.tag = SIM_TAG_STREAM, .context = context, .flags = flags, .priority = priority, .thread = thread
	};
	pthread_mutex_lock(&list_mutex);
	s->next = context->streams;
	context->streams = s;
	pthread_mutex_unlock(&list_mutex);
	return s;
}

/* The calling thread's default stream, made when it is first named. */
static struct CUstream_st *per_thread_stream(struct CUctx_st *context)
{
	static __thread pid_t self;
	struct CUstream_st *s;

	if (!self)
		self = (pid_t)syscall(SYS_gettid);
	pthread_mutex_lock(&list_mutex);
	for (s = context->streams; s && s->thread != self; s = s->next)
		;
	pthread_mutex_unlock(&list_mutex);
	return s ? s : stream_make(context, CU_STREAM_DEFAULT, 0, self);
}

struct CUstream_st *sim_stream(struct CUctx_st *context, CUstream handle)
{
	static __thread struct CUstream_st *cached;
	static __thread struct CUctx_st *cached_for;

	if (!handle || handle == CU_STREAM_LEGACY)
		return &context->legacy;
	if (handle == CU_STREAM_PER_THREAD) {
		if (cached_for != context || cached->tag != SIM_TAG_STREAM) {
			cached = per_thread_stream(context);
			cached_for = cached ? context : NULL;
		}
		return cached;
	}
	return SIM_HANDLE(handle, SIM_TAG_STREAM) ? handle : NULL;
}

/* Small records, and another thread may just be looking at one: they are marked, and kept until the context's end. */
void sim_context_streams_gone(struct CUctx_st *context)
{
	pthread_mutex_lock(&list_mutex);
	for (struct CUstream_st *s = context->streams; s; s = s->next)
		s->tag = 0;
	context->streams = NULL;
	pthread_mutex_unlock(&list_mutex);
}

/* The session a captured event belongs to, while it lasts. */
struct sim_session *sim_session_of(struct CUctx_st *context, unsigned long long id)
{
	struct sim_session *found = NULL;

	pthread_mutex_lock(&list_mutex);
	for (struct CUstream_st *s = context->streams; s && !found; s = s->next)
		if (s->session && s->session->id == id)
			found = s->session;
	pthread_mutex_unlock(&list_mutex);
	return found;
}

/* Take every stream out of a session that ends at its origin; false = what one of them did was never joined. */
bool sim_session_leave(struct CUstream_st *origin, struct sim_session *session)
{
	bool joined = true;

	pthread_mutex_lock(&list_mutex);
	for (struct CUstream_st *s = origin->context->streams; s; s = s->next) {
		if (s->session != session)
			continue;
		if (s != origin && !session->broken)
			joined =
				joined && sim_graph_reaches(session->graph, origin->tip, origin->tips, s->tip, s->tips);
		s->session = NULL;
	}
	pthread_mutex_unlock(&list_mutex);
	return joined;
}

SIM_API CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority)
{
	SIM_CALL_CONTEXT(context);
	if (!stream || flags > CU_STREAM_NON_BLOCKING)
		return CUDA_ERROR_INVALID_VALUE;
	*stream = stream_make(context, flags, priority, 0);
	return *stream ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

SIM_API CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
	return cuStreamCreateWithPriority(stream, flags, 0);
}

SIM_API CUresult cuStreamDestroy_v2(CUstream stream)
{
	SIM_CALL();
	if (!stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD ||
	    !SIM_HANDLE(stream, SIM_TAG_STREAM) || stream == &stream->context->legacy)
		return CUDA_ERROR_INVALID_HANDLE;
	if (stream->session)
		stream->session->broken = true;
	pthread_mutex_lock(&list_mutex);
	for (struct CUstream_st **at = &stream->context->streams; *at; at = &(*at)->next) {
		if (*at == stream) {
			*at = stream->next;
			break;
		}
	}
	pthread_mutex_unlock(&list_mutex);
	stream->tag = 0;
	if (!sim_hold_orphan(stream))
		free(stream);
	return CUDA_SUCCESS;
}

SIM_API CUresult cuStreamDestroy(CUstream stream)
{
	return cuStreamDestroy_v2(stream);
}

SIM_API CUresult cuStreamGetPriority(CUstream stream, int *priority)
{
	SIM_STREAM(s, stream);
	if (!priority)
		return CUDA_ERROR_INVALID_VALUE;
	*priority = s->priority;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuStreamGetFlags(CUstream stream, unsigned *flags)
{
	SIM_STREAM(s, stream);
	if (!flags)
		return CUDA_ERROR_INVALID_VALUE;
	*flags = s->flags;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuStreamGetId(CUstream stream, unsigned long long *id)
{
	SIM_STREAM(s, stream);
	if (!id)
		return CUDA_ERROR_INVALID_VALUE;
	*id = (unsigned long long)(uintptr_t)s;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuStreamGetCtx(CUstream stream, CUcontext *context)
{
	SIM_STREAM(s, stream);
	if (!context)
		return CUDA_ERROR_INVALID_VALUE;
	*context = s->context;
	return CUDA_SUCCESS;
}

/* Asking a captured stream for its progress is a mistake, and it spoils the capture. */
static CUresult spoilt(struct CUstream_st *s)
{
	s->session->broken = true;
	return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

SIM_API CUresult cuStreamSynchronize(CUstream stream)
{
	SIM_STREAM(s, stream);
	if (s->session)
		return spoilt(s);
	if (sim_capture_forbids() && s == &s->context->legacy)
		return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
	CUresult held = sim_hold_wait(s->context, s);

	return held == CUDA_SUCCESS ? sim_synchronise(s->context, s->last) : held;
}

SIM_API CUresult cuStreamQuery(CUstream stream)
{
	SIM_STREAM(s, stream);
	if (s->session)
		return spoilt(s);
	return !sim_held(s) && sim_done(s->context, s->last) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

struct host_call {
	CUhostFn function;
	void *data;
};

static void host_effect(void *argument)
{
	struct host_call *call = argument;

	call->function(call->data);
}

static void call_held(struct CUstream_st *stream, void *argument)
{
	(void)stream;
	host_effect(argument);
}

SIM_API CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *data)
{
	SIM_STREAM(s, stream);
	struct host_call call = { function, data };
	struct sim_node_params node = { .type = CU_GRAPH_NODE_TYPE_HOST,
		                        .effect = host_effect,
		                        .argument = &call,
		                        .argument_bytes = sizeof(call) };
	CUresult error;

	if (!function)
		return CUDA_ERROR_INVALID_VALUE;
	switch (sim_capture_or_run(s, &node, &error)) {
	case SIM_CAPTURED:
		return CUDA_SUCCESS;
	case SIM_CAPTURE_ERROR:
		return error;
	default:
		break;
	}
	if (sim_held(s))
		return sim_hold(s, sim_ready_idle, call_held, &call, sizeof(call), NULL);
	/* Nothing else to do for the calling thread, so it waits and calls. */
	CUresult r = sim_wait(s->context, s->last);

	if (r == CUDA_SUCCESS)
		function(data);
	return r;
}

struct callback {
	CUstream stream; /* as the caller named it */
	CUstreamCallback function;
	void *data;
};

static void callback_held(struct CUstream_st *stream, void *argument)
{
	const struct callback *call = argument;

	call->function(call->stream, stream->context->gpu->lost ? CUDA_ERROR_DEVICE_UNAVAILABLE : CUDA_SUCCESS,
	               call->data);
}

SIM_API CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback callback, void *data, unsigned flags)
{
	SIM_STREAM(s, stream);
	if (!callback || flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (sim_held(s))
		return sim_hold(s, sim_ready_idle, callback_held, &(struct callback){ stream, callback, data },
		                sizeof(struct callback), NULL);
	CUresult r = sim_wait(s->context, s->last);

	callback(stream, r, data);
	return CUDA_SUCCESS;
}

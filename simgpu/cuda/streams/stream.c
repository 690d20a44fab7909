/* SPDX-License-Identifier: Apache-2.0 */
/* Streams: the handles, and the default ones. */
#include "simgpu/cuda/streams/streams.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static pthread_mutex_t list_mutex = PTHREAD_MUTEX_INITIALIZER;

void sim_streams_lock(void)
{
	pthread_mutex_lock(&list_mutex);
}

void sim_streams_unlock(void)
{
	pthread_mutex_unlock(&list_mutex);
}

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

/* The calling thread's default stream, made at its first use. */
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
		if (!cached || cached_for != context || cached->tag != SIM_TAG_STREAM) {
			cached = per_thread_stream(context);
			cached_for = cached ? context : NULL;
		}
		return cached;
	}
	return SIM_HANDLE(handle, SIM_TAG_STREAM) ? handle : NULL;
}

/* Small records, and another thread may be reading one: they are marked, and kept until the context ends. */
void sim_context_streams_gone(struct CUctx_st *context)
{
	pthread_mutex_lock(&list_mutex);
	for (struct CUstream_st *s = context->streams; s; s = s->next)
		s->tag = 0;
	context->streams = NULL;
	pthread_mutex_unlock(&list_mutex);
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

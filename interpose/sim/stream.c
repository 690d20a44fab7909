/* SPDX-License-Identifier: Apache-2.0 */
/* Streams, events, and the capture of what is put on them. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "interpose/sim/graph.h"

static __thread CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
static __thread int thread_captures; /* begun by this thread in other than relaxed mode */
static int global_captures;          /* begun in global mode by anybody */
static unsigned long long capture_ids;
static pthread_mutex_t list_mutex = PTHREAD_MUTEX_INITIALIZER;

bool sim_capture_forbids(void)
{
	if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
		return false;
	return thread_captures > 0 || (thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
	                               __atomic_load_n(&global_captures, __ATOMIC_RELAXED) > 0);
}

enum sim_capture sim_capture_or_run(struct CUstream_st *stream, const struct sim_node_params *node, CUresult *ret_error)
{
	struct sim_session *session = stream->session;

	if (!session) {
		/* The legacy stream would wait for the captured ones, which never run. */
		if (stream == &stream->context->legacy && thread_captures > 0 &&
		    __atomic_load_n(&global_captures, __ATOMIC_RELAXED) > 0) {
			*ret_error = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
			return SIM_CAPTURE_ERROR;
		}
		return SIM_RUN;
	}
	if (session->broken) {
		*ret_error = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
		return SIM_CAPTURE_ERROR;
	}
	struct CUgraphNode_st *added = sim_graph_add(session->graph, node, stream->tip, stream->tips);

	if (!added) {
		*ret_error = CUDA_ERROR_OUT_OF_MEMORY;
		return SIM_CAPTURE_ERROR;
	}
	stream->tip[0] = added;
	stream->tips = 1;
	return SIM_CAPTURED;
}

/* --- streams ------------------------------------------------------------------------------------------------------ */

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
	free(stream);
	return CUDA_SUCCESS;
}

SIM_API CUresult cuStreamDestroy(CUstream stream)
{
	return cuStreamDestroy_v2(stream);
}

#define STREAM(s, handle)                                                                                              \
	SIM_CALL_CONTEXT(context_);                                                                                    \
	struct CUstream_st *s = sim_stream(context_, handle);                                                          \
	if (!s)                                                                                                        \
	return CUDA_ERROR_INVALID_HANDLE

SIM_API CUresult cuStreamGetPriority(CUstream stream, int *priority)
{
	STREAM(s, stream);
	if (!priority)
		return CUDA_ERROR_INVALID_VALUE;
	*priority = s->priority;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuStreamGetFlags(CUstream stream, unsigned *flags)
{
	STREAM(s, stream);
	if (!flags)
		return CUDA_ERROR_INVALID_VALUE;
	*flags = s->flags;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuStreamGetId(CUstream stream, unsigned long long *id)
{
	STREAM(s, stream);
	if (!id)
		return CUDA_ERROR_INVALID_VALUE;
	*id = (unsigned long long)(uintptr_t)s;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuStreamGetCtx(CUstream stream, CUcontext *context)
{
	STREAM(s, stream);
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
	STREAM(s, stream);
	if (s->session)
		return spoilt(s);
	if (sim_capture_forbids() && s == &s->context->legacy)
		return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
	return sim_synchronise(s->context, s->last);
}

SIM_API CUresult cuStreamQuery(CUstream stream)
{
	STREAM(s, stream);
	if (s->session)
		return spoilt(s);
	return sim_done(s->context, s->last) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static bool tips_add(struct CUstream_st *s, struct CUgraphNode_st *const *tips, unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		bool has = false;

		for (unsigned k = 0; k < s->tips; k++)
			has = has || s->tip[k] == tips[i];
		if (has)
			continue;
		if (s->tips == SIM_TIPS)
			return false;
		s->tip[s->tips++] = tips[i];
	}
	return true;
}

/* The session a captured event belongs to, while it lasts. */
static struct sim_session *session_of(struct CUctx_st *context, unsigned long long id)
{
	struct sim_session *found = NULL;

	pthread_mutex_lock(&list_mutex);
	for (struct CUstream_st *s = context->streams; s && !found; s = s->next)
		if (s->session && s->session->id == id)
			found = s->session;
	pthread_mutex_unlock(&list_mutex);
	return found;
}

SIM_API CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
	STREAM(s, stream);
	if (!SIM_HANDLE(event, SIM_TAG_EVENT))
		return CUDA_ERROR_INVALID_HANDLE;
	if (flags > CU_EVENT_WAIT_EXTERNAL)
		return CUDA_ERROR_INVALID_VALUE;
	if (event->captured_id) {
		struct sim_session *session = session_of(event->context, event->captured_id);

		if (!session)
			return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
		if (s->session && s->session != session) {
			s->session->broken = session->broken = true;
			return CUDA_ERROR_STREAM_CAPTURE_MERGE;
		}
		if (s == &s->context->legacy)
			return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
		if (!s->session)
			s->tips = 0;
		s->session = session; /* joined */
		return tips_add(s, event->tip, event->tips) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (s->session) {
		if (event->sequence && flags != CU_EVENT_WAIT_EXTERNAL) { /* work outside the capture */
			s->session->broken = true;
			return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
		}
		return CUDA_SUCCESS;
	}
	/* One context: order of submission already waits. Two contexts: wait here, on the host. */
	if (event->sequence && event->context != s->context)
		return sim_wait(event->context, event->sequence);
	return CUDA_SUCCESS;
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

SIM_API CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *data)
{
	STREAM(s, stream);
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
	/* No helper thread: the calling thread waits and calls. */
	CUresult r = sim_wait(s->context, s->last);

	if (r == CUDA_SUCCESS)
		function(data);
	return r;
}

SIM_API CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback callback, void *data, unsigned flags)
{
	STREAM(s, stream);
	if (!callback || flags)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult r = sim_wait(s->context, s->last);

	callback(stream, r, data);
	return CUDA_SUCCESS;
}

/* --- capture ------------------------------------------------------------------------------------------------------ */

SIM_API CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
	SIM_CALL();
	if (!mode || (unsigned)*mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	CUstreamCaptureMode old = thread_mode;

	thread_mode = *mode;
	*mode = old;
	return CUDA_SUCCESS;
}

static CUresult capture_begin(struct CUstream_st *s, CUstreamCaptureMode mode, struct CUgraph_st *into)
{
	if (s == &s->context->legacy)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	if ((unsigned)mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	if (s->session)
		return CUDA_ERROR_ILLEGAL_STATE;
	struct sim_session *session = calloc(1, sizeof(*session));

	if (!session || !(session->graph = into ? into : sim_graph_make())) {
		free(session);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	session->borrowed = into != NULL;
	session->origin = s;
	session->mode = mode;
	session->id = __atomic_add_fetch(&capture_ids, 1, __ATOMIC_RELAXED);
	s->session = session;
	s->tips = 0;
	if (mode != CU_STREAM_CAPTURE_MODE_RELAXED)
		thread_captures++;
	if (mode == CU_STREAM_CAPTURE_MODE_GLOBAL)
		__atomic_fetch_add(&global_captures, 1, __ATOMIC_RELAXED);
	return CUDA_SUCCESS;
}

SIM_API CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode)
{
	STREAM(s, stream);
	return capture_begin(s, mode, NULL);
}

SIM_API CUresult cuStreamBeginCapture(CUstream stream)
{
	return cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

SIM_API CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *dependencies,
                                             const CUgraphEdgeData *edges, size_t count, CUstreamCaptureMode mode)
{
	STREAM(s, stream);
	(void)edges;
	if (!SIM_HANDLE(graph, SIM_TAG_GRAPH) || (count && !dependencies) || count > SIM_TIPS)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult r = capture_begin(s, mode, graph);

	if (r == CUDA_SUCCESS)
		tips_add(s, dependencies, (unsigned)count);
	return r;
}

SIM_API CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
	STREAM(s, stream);
	struct sim_session *session = s->session;
	bool joined = true;

	if (!graph)
		return CUDA_ERROR_INVALID_VALUE;
	*graph = NULL;
	if (!session)
		return CUDA_ERROR_ILLEGAL_STATE;
	if (session->origin != s) {
		session->broken = true;
		return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
	}
	if (session->mode != CU_STREAM_CAPTURE_MODE_RELAXED) {
		if (thread_captures == 0)
			return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
		thread_captures--;
	}
	if (session->mode == CU_STREAM_CAPTURE_MODE_GLOBAL)
		__atomic_fetch_sub(&global_captures, 1, __ATOMIC_RELAXED);
	pthread_mutex_lock(&list_mutex);
	for (struct CUstream_st *other = s->context->streams; other; other = other->next) {
		if (other->session != session)
			continue;
		if (other != s && !session->broken)
			joined = joined && sim_graph_reaches(session->graph, s->tip, s->tips, other->tip, other->tips);
		other->session = NULL;
		other->tips = 0;
	}
	pthread_mutex_unlock(&list_mutex);
	bool broken = session->broken;

	if (!broken && joined)
		*graph = session->graph;
	else if (!session->borrowed)
		sim_graph_free(session->graph);
	free(session);
	return broken   ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
	       : joined ? CUDA_SUCCESS
	                : CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
}

SIM_API CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status)
{
	STREAM(s, stream);
	if (!status)
		return CUDA_ERROR_INVALID_VALUE;
	if (s == &s->context->legacy && thread_captures > 0 && __atomic_load_n(&global_captures, __ATOMIC_RELAXED) > 0)
		return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
	*status = !s->session          ? CU_STREAM_CAPTURE_STATUS_NONE
	          : s->session->broken ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
	                               : CU_STREAM_CAPTURE_STATUS_ACTIVE;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id,
                                           CUgraph *graph, const CUgraphNode **dependencies,
                                           const CUgraphEdgeData **edges, size_t *count)
{
	STREAM(s, stream);
	CUresult r = cuStreamIsCapturing(stream, status);

	if (r != CUDA_SUCCESS || *status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
		return r;
	if (id)
		*id = s->session->id;
	if (graph)
		*graph = s->session->graph;
	if (dependencies)
		*dependencies = s->tip;
	if (edges)
		*edges = NULL;
	if (count)
		*count = s->tips;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id,
                                           CUgraph *graph, const CUgraphNode **dependencies, size_t *count)
{
	return cuStreamGetCaptureInfo_v3(stream, status, id, graph, dependencies, NULL, count);
}

SIM_API CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id)
{
	return cuStreamGetCaptureInfo_v3(stream, status, id, NULL, NULL, NULL, NULL);
}

SIM_API CUresult cuStreamUpdateCaptureDependencies(CUstream stream, CUgraphNode *dependencies, size_t count,
                                                   unsigned flags)
{
	STREAM(s, stream);
	if (!s->session)
		return CUDA_ERROR_ILLEGAL_STATE;
	if (flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES || (count && !dependencies))
		return CUDA_ERROR_INVALID_VALUE;
	if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES)
		s->tips = 0;
	return tips_add(s, dependencies, (unsigned)count) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* --- events ------------------------------------------------------------------------------------------------------- */

static pthread_mutex_t cell_mutex = PTHREAD_MUTEX_INITIALIZER;
static uint32_t free_cells[SIM_CELLS], free_cell_count, next_cell;

SIM_API CUresult cuEventCreate(CUevent *event, unsigned flags)
{
	SIM_CALL_CONTEXT(context);
	if (!event || flags & ~7u)
		return CUDA_ERROR_INVALID_VALUE;
	struct CUevent_st *e = calloc(1, sizeof(*e));
	bool got = false;

	if (!e)
		return CUDA_ERROR_OUT_OF_MEMORY;
	pthread_mutex_lock(&cell_mutex);
	if (free_cell_count > 0) {
		e->cell = free_cells[--free_cell_count];
		got = true;
	} else if (next_cell < SIM_CELLS) {
		e->cell = next_cell++;
		got = true;
	}
	pthread_mutex_unlock(&cell_mutex);
	if (!got) {
		free(e);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	e->tag = SIM_TAG_EVENT;
	e->context = context;
	e->flags = flags;
	*event = e;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuEventDestroy_v2(CUevent event)
{
	SIM_CALL();
	if (!SIM_HANDLE(event, SIM_TAG_EVENT))
		return CUDA_ERROR_INVALID_HANDLE;
	event->tag = 0;
	if (event->sequence && event->context->tag == SIM_TAG_CONTEXT)
		sim_wait(event->context, event->sequence); /* its cell must not be written once it is somebody else's */
	pthread_mutex_lock(&cell_mutex);
	free_cells[free_cell_count++] = event->cell;
	pthread_mutex_unlock(&cell_mutex);
	free(event);
	return CUDA_SUCCESS;
}

SIM_API CUresult cuEventDestroy(CUevent event)
{
	return cuEventDestroy_v2(event);
}

SIM_API CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags)
{
	STREAM(s, stream);
	if (!SIM_HANDLE(event, SIM_TAG_EVENT) || flags > 1)
		return CUDA_ERROR_INVALID_HANDLE;
	if (event->context != s->context)
		return CUDA_ERROR_INVALID_HANDLE;
	if (s->session) {
		event->captured_id = s->session->id;
		memcpy(event->tip, s->tip, sizeof(s->tip));
		event->tips = s->tips;
		return CUDA_SUCCESS;
	}
	event->captured_id = 0;
	event->sequence = s->last = sim_submit(s->context, SIM_OP_STAMP, 0, event->cell);
	return CUDA_SUCCESS;
}

SIM_API CUresult cuEventRecord(CUevent event, CUstream stream)
{
	return cuEventRecordWithFlags(event, stream, 0);
}

SIM_API CUresult cuEventQuery(CUevent event)
{
	SIM_CALL();
	if (!SIM_HANDLE(event, SIM_TAG_EVENT))
		return CUDA_ERROR_INVALID_HANDLE;
	if (event->captured_id)
		return CUDA_ERROR_CAPTURED_EVENT;
	if (sim_capture_forbids())
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	return !event->sequence || sim_done(event->context, event->sequence) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

SIM_API CUresult cuEventSynchronize(CUevent event)
{
	SIM_CALL();
	if (!SIM_HANDLE(event, SIM_TAG_EVENT))
		return CUDA_ERROR_INVALID_HANDLE;
	if (event->captured_id)
		return CUDA_ERROR_CAPTURED_EVENT;
	return event->sequence ? sim_synchronise(event->context, event->sequence) : CUDA_SUCCESS;
}

SIM_API CUresult cuEventElapsedTime_v2(float *ms, CUevent start, CUevent end)
{
	SIM_CALL();
	if (!ms)
		return CUDA_ERROR_INVALID_VALUE;
	if (!SIM_HANDLE(start, SIM_TAG_EVENT) || !SIM_HANDLE(end, SIM_TAG_EVENT) || !start->sequence ||
	    !end->sequence || (start->flags | end->flags) & CU_EVENT_DISABLE_TIMING ||
	    start->context->gpu != end->context->gpu)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!sim_done(start->context, start->sequence) || !sim_done(end->context, end->sequence))
		return CUDA_ERROR_NOT_READY;
	const uint64_t *cells = sim_process()->client->cell_ns;
	uint64_t from = __atomic_load_n(&cells[start->cell], __ATOMIC_ACQUIRE);
	uint64_t to = __atomic_load_n(&cells[end->cell], __ATOMIC_ACQUIRE);

	*ms = (float)((double)(int64_t)(to - from) / 1e6);
	return CUDA_SUCCESS;
}

SIM_API CUresult cuEventElapsedTime(float *ms, CUevent start, CUevent end)
{
	return cuEventElapsedTime_v2(ms, start, end);
}

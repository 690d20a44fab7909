/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream capture. A session begins on one stream; others join it by waiting for an event recorded in it, and have to
 * be joined back before it ends where it began.
 */
#include <stdlib.h>
#include <string.h>

#include "interpose/sim/graph.h"
#include "interpose/sim/hold.h"

static __thread CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
static __thread int thread_captures; /* begun by this thread in other than relaxed mode */
static int global_captures;          /* begun in global mode by anybody */
static unsigned long long capture_ids;

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

/* What a stream waits for that is held, or that waits for the event of one that is. */
struct awaited {
	const struct CUstream_st *on; /* where the event is still to be recorded, NULL = it is */
	uint64_t ticket;
	struct CUctx_st *context; /* of an event of another context: order of submission is no help there */
	uint64_t sequence;
};

static bool come(struct CUstream_st *stream, const void *argument)
{
	const struct awaited *a = argument;

	(void)stream;
	return (!a->on || sim_hold_past(a->on, a->ticket)) && (!a->context || sim_done(a->context, a->sequence));
}

static CUresult wait_held(struct CUstream_st *s, const struct CUevent_st *event)
{
	struct awaited a = { 0 };

	if (event->held_on && sim_hold_pending(event->held_on, event->held_ticket)) {
		a.on = event->held_on; /* of another context: that its work was submitted will have to do */
		a.ticket = event->held_ticket;
	} else if (event->sequence && event->context != s->context) {
		a.context = event->context;
		a.sequence = event->sequence;
	}
	return sim_hold(s, come, NULL, &a, sizeof(a), NULL);
}

SIM_API CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
	SIM_STREAM(s, stream);
	if (!SIM_HANDLE(event, SIM_TAG_EVENT))
		return CUDA_ERROR_INVALID_HANDLE;
	if (flags > CU_EVENT_WAIT_EXTERNAL)
		return CUDA_ERROR_INVALID_VALUE;
	if (event->captured_id) {
		struct sim_session *session = sim_session_of(event->context, event->captured_id);

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
	if (sim_held(s) || (event->held_on && sim_hold_pending(event->held_on, event->held_ticket)))
		return wait_held(s, event);
	/* One context: order of submission already waits. Two contexts: wait here, on the host. */
	if (event->sequence && event->context != s->context)
		return sim_wait(event->context, event->sequence);
	return CUDA_SUCCESS;
}

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
	SIM_STREAM(s, stream);
	return capture_begin(s, mode, NULL);
}

SIM_API CUresult cuStreamBeginCapture(CUstream stream)
{
	return cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

SIM_API CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *dependencies,
                                             const CUgraphEdgeData *edges, size_t count, CUstreamCaptureMode mode)
{
	SIM_STREAM(s, stream);
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
	SIM_STREAM(s, stream);
	struct sim_session *session = s->session;
	bool joined;

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
	joined = sim_session_leave(s, session);
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
	SIM_STREAM(s, stream);
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
	SIM_STREAM(s, stream);
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
	SIM_STREAM(s, stream);
	if (!s->session)
		return CUDA_ERROR_ILLEGAL_STATE;
	if (flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES || (count && !dependencies))
		return CUDA_ERROR_INVALID_VALUE;
	if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES)
		s->tips = 0;
	return tips_add(s, dependencies, (unsigned)count) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream capture. A session begins on one stream; others join it by waiting for an event recorded in it, and must be
 * joined back before it ends on the stream where it began.
 */
#include "simgpu/cuda/graphs/graphs.h"

#include <stdlib.h>

#include "simgpu/cuda/streams/streams.h"

static __thread CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
static __thread int thread_captures; /* begun by this thread in a mode other than relaxed */
static int global_captures;          /* begun in global mode by any thread */
static unsigned long long capture_ids;
static unsigned violations; /* forbidden queries of threads while a capture was open in global mode */

bool sim_capture_forbids(void)
{
	if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
		return false;
	return thread_captures > 0 || (thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
	                               __atomic_load_n(&global_captures, __ATOMIC_RELAXED) > 0);
}

bool sim_capture_violated(void)
{
	if (!sim_capture_forbids())
		return false;
	__atomic_fetch_add(&violations, 1, __ATOMIC_RELAXED);
	return true;
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

bool sim_tips_add(struct CUstream_st *s, struct CUgraphNode_st *const *tips, unsigned count)
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

struct sim_session *sim_session_of(struct CUctx_st *context, unsigned long long id)
{
	struct sim_session *found = NULL;

	sim_streams_lock();
	for (struct CUstream_st *s = context->streams; s && !found; s = s->next)
		if (s->session && s->session->id == id)
			found = s->session;
	sim_streams_unlock();
	return found;
}

/* Take every stream out of a session that ends at its origin; false = the work of one of them was never joined. */
static bool session_leave(struct CUstream_st *origin, struct sim_session *session)
{
	bool joined = true;

	sim_streams_lock();
	for (struct CUstream_st *s = origin->context->streams; s; s = s->next) {
		if (s->session != session)
			continue;
		if (s != origin && !session->broken)
			joined =
				joined && sim_graph_reaches(session->graph, origin->tip, origin->tips, s->tip, s->tips);
		s->session = NULL;
	}
	sim_streams_unlock();
	return joined;
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
	session->violations = __atomic_load_n(&violations, __ATOMIC_RELAXED);
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
		sim_tips_add(s, dependencies, (unsigned)count);
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
	joined = session_leave(s, session);
	if (session->mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
	    session->violations != __atomic_load_n(&violations, __ATOMIC_RELAXED))
		session->broken = true;
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
	return sim_tips_add(s, dependencies, (unsigned)count) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Events: each is a cell of the shared state, which the timeline writes when the event is reached. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "simgpu/cuda/base/queue.h"
#include "simgpu/cuda/graphs/graphs.h"
#include "simgpu/cuda/streams/streams.h"
#include "simgpu/cuda/work/wait.h"

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

/* True if its last record is still to come, on a held stream. */
static bool pending(const struct CUevent_st *e)
{
	return e->held_on && sim_hold_pending(e->held_on, e->held_ticket);
}

static void forget_pending(struct CUevent_st *e)
{
	if (e->held_on)
		sim_hold_cancel(e->held_on, e->held_ticket);
	e->held_on = NULL;
}

static void record(struct CUstream_st *stream, void *argument)
{
	struct CUevent_st *e;

	memcpy(&e, argument, sizeof(CUevent));
	e->sequence = stream->last = sim_submit(stream->context, SIM_OP_STAMP, 0, e->cell);
}

SIM_API CUresult cuEventDestroy_v2(CUevent event)
{
	SIM_CALL();
	if (!SIM_HANDLE(event, SIM_TAG_EVENT))
		return CUDA_ERROR_INVALID_HANDLE;
	forget_pending(event);
	event->tag = 0;
	if (event->sequence && event->context->tag == SIM_TAG_CONTEXT)
		sim_wait(event->context, event->sequence); /* its cell may belong to another event afterwards */
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
	SIM_STREAM(s, stream);
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
	forget_pending(event);
	if (sim_held(s)) {
		CUresult r = sim_hold(s, NULL, record, &event, sizeof(CUevent), &event->held_ticket);

		event->held_on = r == CUDA_SUCCESS ? s : NULL;
		return r;
	}
	record(s, &event);
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
	if (sim_capture_violated())
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	if (pending(event))
		return CUDA_ERROR_NOT_READY;
	return !event->sequence || sim_done(event->context, event->sequence) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

SIM_API CUresult cuEventSynchronize(CUevent event)
{
	SIM_CALL();
	if (!SIM_HANDLE(event, SIM_TAG_EVENT))
		return CUDA_ERROR_INVALID_HANDLE;
	if (event->captured_id)
		return CUDA_ERROR_CAPTURED_EVENT;
	if (event->held_on)
		sim_hold_wait_for(event->held_on, event->held_ticket);
	return event->sequence ? sim_synchronise(event->context, event->sequence) : CUDA_SUCCESS;
}

SIM_API CUresult cuEventElapsedTime_v2(float *ms, CUevent start, CUevent end)
{
	SIM_CALL();
	if (!ms)
		return CUDA_ERROR_INVALID_VALUE;
	if (!SIM_HANDLE(start, SIM_TAG_EVENT) || !SIM_HANDLE(end, SIM_TAG_EVENT) ||
	    (start->flags | end->flags) & CU_EVENT_DISABLE_TIMING || start->context->gpu != end->context->gpu)
		return CUDA_ERROR_INVALID_HANDLE;
	if (pending(start) || pending(end))
		return CUDA_ERROR_NOT_READY;
	if (!start->sequence || !end->sequence)
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

/* --- streams that wait for events --------------------------------------------------------------------------------- */

/* The held entry for which a stream waits, or the event of a held stream. */
struct awaited {
	const struct CUstream_st *on; /* the stream on which the event is still to be recorded, NULL = it is recorded */
	uint64_t ticket;
	struct CUctx_st *context; /* context of an event of another context, where submission order does not help */
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
		a.on = event->held_on; /* an event of another context: waits until its work was submitted */
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
		s->session = session; /* the stream joins the capture */
		return sim_tips_add(s, event->tip, event->tips) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (s->session) {
		if (event->sequence && flags != CU_EVENT_WAIT_EXTERNAL) { /* an event of work outside the capture */
			s->session->broken = true;
			return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
		}
		return CUDA_SUCCESS;
	}
	if (sim_held(s) || (event->held_on && sim_hold_pending(event->held_on, event->held_ticket)))
		return wait_held(s, event);
	/* Same context: submission order is enough. Different contexts: wait here, on the host. */
	if (event->sequence && event->context != s->context)
		return sim_wait(event->context, event->sequence);
	return CUDA_SUCCESS;
}

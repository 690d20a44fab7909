/* SPDX-License-Identifier: Apache-2.0 */
/* The contexts that a record's events belong to: see homes.h. */
#include "interpose/compute/timing/homes.h"

#include "interpose/compute/timing/records.h"
#include "interpose/compute/rules/gate.h"
#include "interpose/compute/rules/words.h"
#include "interpose/driver/driver.h"
#include "interpose/tenant/guest.h"

static void discard(CUevent *event)
{
	if (*event && driver.cuEventDestroy_v2)
		driver.cuEventDestroy_v2(*event);
	*event = NULL;
}

/* Give a claimed record events of that context. Events of another one cannot be recorded on its streams. */
bool homes_settle_in(struct throttle_pipe *pipe, struct throttle_record *record, CUcontext home)
{
	bool foreign = home != context_of(pipe);

	if (record->home != home) {
		discard(&record->before);
		discard(&record->after);
		__atomic_store_n(&record->home, home, __ATOMIC_RELAXED);
	}
	if (record->before && record->after)
		return true;
	if (foreign && (!driver.cuCtxPushCurrent_v2 || driver.cuCtxPushCurrent_v2(home) != CUDA_SUCCESS))
		return false;
	bool made = (record->before || driver.cuEventCreate(&record->before, CU_EVENT_DEFAULT) == CUDA_SUCCESS) &&
	            (record->after || driver.cuEventCreate(&record->after, CU_EVENT_DEFAULT) == CUDA_SUCCESS);

	if (foreign)
		driver.cuCtxPopCurrent_v2(&home);
	return made;
}

/* The context that a stream's events have to be of: as far as is known the current one, which the pipe belongs to. */
CUcontext homes_find(const struct throttle_pipe *pipe, CUstream stream)
{
	const struct throttle_foreign *f = &pipe->foreign[gate_mix((uintptr_t)stream) % FOREIGN_STREAMS];

	return stream && __atomic_load_n(&f->stream, __ATOMIC_RELAXED) == stream
	               ? __atomic_load_n(&f->home, __ATOMIC_RELAXED)
	               : context_of(pipe);
}

/* The driver refused an event: ask it for the stream's context. Green and execution contexts have streams of their own,
 * which a thread may use while the primary context is current. */
CUcontext homes_ask(struct throttle_pipe *pipe, CUstream stream)
{
	struct throttle_foreign *f = &pipe->foreign[gate_mix((uintptr_t)stream) % FOREIGN_STREAMS];
	CUcontext home = NULL;
	CUgreenCtx green = NULL;

	if (driver.cuStreamGetGreenCtx && driver.cuCtxFromGreenCtx &&
	    driver.cuStreamGetGreenCtx(stream, &green) == CUDA_SUCCESS && green)
		driver.cuCtxFromGreenCtx(&home, green);
	if (!home && (!driver.cuStreamGetCtx || driver.cuStreamGetCtx(stream, &home) != CUDA_SUCCESS))
		return NULL;
	/* another thread may read one without the other: the driver then refuses its event, too */
	__atomic_store_n(&f->home, home, __ATOMIC_RELAXED);
	__atomic_store_n(&f->stream, stream, __ATOMIC_RELAXED);
	return home;
}

/* True if the record's events are of that context, and that is another than the pipe's. */
static bool is_at_home(const struct throttle_pipe *pipe, const struct throttle_record *record, uint32_t tag)
{
	CUcontext home = __atomic_load_n(&record->home, __ATOMIC_RELAXED);

	return home && home != context_of(pipe) && guest_context_tag(home) == tag;
}

/* A context other than the pipe's was destroyed, and with it the events of records in it. */
void homes_gone(struct throttle_pipe *pipe, uint32_t tag)
{
	for (unsigned i = 0; i < RECORDS; i++) {
		struct throttle_record *record = &pipe->record[i];
		uint32_t state = __atomic_load_n(&record->state, __ATOMIC_ACQUIRE);

		if ((state != RECORD_FREE && state != RECORD_PENDING) || !is_at_home(pipe, record, tag) ||
		    !__atomic_compare_exchange_n(&record->state, &state, RECORD_REAPING, false, __ATOMIC_ACQUIRE,
		                                 __ATOMIC_RELAXED))
			continue;
		if (!is_at_home(pipe, record, tag)) { /* another thread had it meanwhile */
			__atomic_store_n(&record->state, state, __ATOMIC_RELEASE);
			continue;
		}
		record->before = record->after = NULL;
		__atomic_store_n(&record->home, NULL, __ATOMIC_RELAXED);
		if (state == RECORD_PENDING) {
			if (guest_self())
				add64(&guest_usage(device_of(pipe))->completed_ns, record->work.paid_ns);
			take64(&pipe->inflight_ns, record->work.paid_ns);
			__atomic_fetch_sub(&pipe->outstanding, 1, __ATOMIC_RELAXED);
		}
		__atomic_store_n(&record->state, RECORD_FREE, __ATOMIC_RELEASE);
	}
}

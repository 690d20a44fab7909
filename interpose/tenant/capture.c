/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counts the open captures of the process, so that the mode of a thread is exchanged only while there is one.
 *
 * A section is a time in which this library calls the driver in a thread without relaxed mode. A thread that begins a
 * capture counts it first and then waits for the sections to end; a thread that begins a section counts it first and
 * then looks for captures. One of the two sees the other. Sections are some calls long, since they end before any
 * wait.
 */
#include "interpose/tenant/capture.h"

#include <sched.h>

#include "nativecommon/clock.h"

#define SECTION_PATIENCE_NS UINT64_C(10000000) /* for a section whose thread was cancelled */

static uint32_t captures; /* more than are open where the driver has dropped one */
static uint32_t sections;

static __thread struct {
	bool section;
	bool relaxed;
	CUstreamCaptureMode mode; /* the thread's own, while relaxed */
} own __attribute__((tls_model("initial-exec")));

bool capture_open(void)
{
	return __atomic_load_n(&captures, __ATOMIC_SEQ_CST) > 0;
}

static void exchange(CUstreamCaptureMode *mode)
{
	if (driver.cuThreadExchangeStreamCaptureMode)
		driver.cuThreadExchangeStreamCaptureMode(mode);
}

static void relax_now(void)
{
	own.mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	exchange(&own.mode);
	own.relaxed = true;
}

static void section_end(void)
{
	own.section = false;
	__atomic_fetch_sub(&sections, 1, __ATOMIC_SEQ_CST);
}

void capture_relax(void)
{
	own.section = true;
	__atomic_fetch_add(&sections, 1, __ATOMIC_SEQ_CST);
	if (!capture_open())
		return;
	section_end();
	relax_now();
}

void capture_wait(void)
{
	if (!own.section)
		return;
	relax_now();
	section_end();
}

void capture_restore(void)
{
	if (own.section)
		section_end();
	if (own.relaxed) {
		own.relaxed = false;
		exchange(&own.mode);
	}
}

void capture_forget_parent(void)
{
	own.section = own.relaxed = false;
	captures = sections = 0;
}

static void capture_begins(void)
{
	uint64_t began_ns = clock_ns();

	__atomic_fetch_add(&captures, 1, __ATOMIC_SEQ_CST);
	while (__atomic_load_n(&sections, __ATOMIC_SEQ_CST) > 0 && clock_ns() - began_ns < SECTION_PATIENCE_NS)
		sched_yield();
}

/* Never below zero: an end may belong to a capture that began before this library was loaded. */
static void capture_ends(void)
{
	uint32_t open = __atomic_load_n(&captures, __ATOMIC_RELAXED);

	while (open &&
	       !__atomic_compare_exchange_n(&captures, &open, open - 1, true, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
		;
}

#define BEGIN(symbol, params, arguments)                                                                               \
	CUresult symbol params                                                                                         \
	{                                                                                                              \
		if (!driver.symbol)                                                                                    \
			return CUDA_ERROR_NOT_FOUND;                                                                   \
		capture_begins();                                                                                      \
		CUresult result = driver.symbol arguments;                                                             \
                                                                                                                       \
		if (result != CUDA_SUCCESS)                                                                            \
			capture_ends();                                                                                \
		return result;                                                                                         \
	}

/* After other errors the capture may still be open. */
#define END(symbol, params, arguments)                                                                                 \
	CUresult symbol params                                                                                         \
	{                                                                                                              \
		if (!driver.symbol)                                                                                    \
			return CUDA_ERROR_NOT_FOUND;                                                                   \
		CUresult result = driver.symbol arguments;                                                             \
                                                                                                                       \
		if (result == CUDA_SUCCESS || result == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED ||                       \
		    result == CUDA_ERROR_STREAM_CAPTURE_UNJOINED)                                                      \
			capture_ends();                                                                                \
		return result;                                                                                         \
	}

BEGIN(cuStreamBeginCapture, (CUstream stream), (stream))
BEGIN(cuStreamBeginCapture_ptsz, (CUstream stream), (stream))
BEGIN(cuStreamBeginCapture_v2, (CUstream stream, CUstreamCaptureMode mode), (stream, mode))
BEGIN(cuStreamBeginCapture_v2_ptsz, (CUstream stream, CUstreamCaptureMode mode), (stream, mode))
BEGIN(cuStreamBeginCaptureToGraph,
      (CUstream stream, CUgraph graph, const CUgraphNode *from, const CUgraphEdgeData *edges, size_t count,
       CUstreamCaptureMode mode),
      (stream, graph, from, edges, count, mode))
BEGIN(cuStreamBeginCaptureToGraph_ptsz,
      (CUstream stream, CUgraph graph, const CUgraphNode *from, const CUgraphEdgeData *edges, size_t count,
       CUstreamCaptureMode mode),
      (stream, graph, from, edges, count, mode))
BEGIN(cuStreamBeginCaptureToCig, (CUstream stream, void *params), (stream, params))
BEGIN(cuStreamBeginCaptureToCig_ptsz, (CUstream stream, void *params), (stream, params))
BEGIN(cuStreamBeginRecaptureToGraph,
      (CUstream stream, CUstreamCaptureMode mode, CUgraph graph, void *callback, void *data),
      (stream, mode, graph, callback, data))
BEGIN(cuStreamBeginRecaptureToGraph_ptsz,
      (CUstream stream, CUstreamCaptureMode mode, CUgraph graph, void *callback, void *data),
      (stream, mode, graph, callback, data))
END(cuStreamEndCapture, (CUstream stream, CUgraph *graph), (stream, graph))
END(cuStreamEndCapture_ptsz, (CUstream stream, CUgraph *graph), (stream, graph))
END(cuStreamEndCaptureToCig, (CUstream stream), (stream))
END(cuStreamEndCaptureToCig_ptsz, (CUstream stream), (stream))

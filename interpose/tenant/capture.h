/* SPDX-License-Identifier: Apache-2.0 */
/* Stream capture, as two of our own concerns meet it: what a stream records does not run, and must not be disturbed. */
#ifndef SLUICE_CAPTURE_H
#define SLUICE_CAPTURE_H

#include <stdbool.h>

#include "interpose/driver/driver.h"

/* Does the stream record a graph instead of running what it is given? An error of the driver (the legacy stream while
 * another one is captured) means the same: nothing will run and nothing be allocated. */
static inline bool capture_records(CUstream stream, bool per_thread)
{
	CUresult (*ask)(CUstream, CUstreamCaptureStatus *) =
		per_thread ? driver.cuStreamIsCapturing_ptsz : driver.cuStreamIsCapturing;
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;

	return ask && (ask(stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE);
}

/* Our own event calls must not end a capture that another thread has going in global mode. Returns the thread's mode,
 * for capture_restore(). */
static inline CUstreamCaptureMode capture_relax(void)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;

	if (driver.cuThreadExchangeStreamCaptureMode)
		driver.cuThreadExchangeStreamCaptureMode(&mode);
	return mode;
}

static inline void capture_restore(CUstreamCaptureMode mode)
{
	if (driver.cuThreadExchangeStreamCaptureMode)
		driver.cuThreadExchangeStreamCaptureMode(&mode);
}

#endif

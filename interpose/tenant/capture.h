/* SPDX-License-Identifier: Apache-2.0 */
/* Stream capture concerns the interposer in two ways: calls that a stream records do not run, and its own event calls
 * must not end a capture. */
#ifndef SLUICE_CAPTURE_H
#define SLUICE_CAPTURE_H

#include <stdbool.h>

#include "interpose/driver/driver.h"

/* Is the stream being captured into a graph? An error of the driver (the legacy stream while another one is captured)
 * means the same: the call will neither run nor allocate. */
static inline bool capture_records(CUstream stream, bool per_thread)
{
	CUresult (*ask)(CUstream, CUstreamCaptureStatus *) =
		per_thread ? driver.cuStreamIsCapturing_ptsz : driver.cuStreamIsCapturing;
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;

	return ask && (ask(stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE);
}

/* Our own event calls must not end a capture that another thread has started in global mode. Returns the thread's mode,
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

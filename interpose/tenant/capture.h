/* SPDX-License-Identifier: Apache-2.0 */
/* Stream capture concerns the interposer in two ways: calls that a stream records do not run, and its own event calls
 * must not end a capture. Both cost calls of the driver, which are made only while a capture is open in the process. */
#ifndef SLUICE_CAPTURE_H
#define SLUICE_CAPTURE_H

#include <stdbool.h>

#include "interpose/driver/driver.h"

/* True while a capture may be open on any stream of the process. */
bool capture_open(void);

/* True if the stream is being captured into a graph. An error of the driver (the legacy stream while another one is
 * captured) means the same: the call will neither run nor allocate. */
static inline bool capture_records(CUstream stream, bool per_thread)
{
	CUresult (*ask)(CUstream, CUstreamCaptureStatus *) =
		per_thread ? driver.cuStreamIsCapturing_ptsz : driver.cuStreamIsCapturing;
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;

	return ask && (ask(stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE);
}

/* Our own event calls must not end a capture that another thread has started in global mode: between these two the
 * thread's capture mode is relaxed, or no capture begins. Not to be nested. */
void capture_relax(void);
void capture_restore(void);
/* In between, before a wait: captures may begin from here on. */
void capture_wait(void);

/* The process attaches again after a fork: open captures were its parent's. */
void capture_forget_parent(void);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The context that a record's events have to be of. It is the pipe's own but for the streams of green and execution
 * contexts, which a thread may use while the primary context is current.
 */
#ifndef SLUICE_HOMES_H
#define SLUICE_HOMES_H

#include <stdbool.h>
#include <stdint.h>

#include "nativecommon/cuda_abi.h"

struct throttle_pipe;
struct throttle_record;

/* Give a claimed record events of that context; false: the driver has none. */
bool homes_settle_in(struct throttle_pipe *pipe, struct throttle_record *record, CUcontext home);
/* The context of a stream's events as far as is known, without a call of the driver. */
CUcontext homes_find(const struct throttle_pipe *pipe, CUstream stream);
/* The driver's answer, remembered for that stream; NULL: it does not say. */
CUcontext homes_ask(struct throttle_pipe *pipe, CUstream stream);
/* A context other than the pipe's has gone, and the events that records have in it. */
void homes_gone(struct throttle_pipe *pipe, uint32_t tag);

#endif

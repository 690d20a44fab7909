/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The home of a record: the context in which its events have to be created. It is the pipe's own, except for streams of
 * green and execution contexts, which a thread may use while the primary context is current.
 */
#ifndef SLUICE_HOMES_H
#define SLUICE_HOMES_H

#include <stdbool.h>
#include <stdint.h>

#include "nativecommon/cuda_abi.h"

struct throttle_pipe;
struct throttle_record;

/* Give a claimed record events of that context; false: the driver could not create them. */
bool homes_settle_in(struct throttle_pipe *pipe, struct throttle_record *record, CUcontext home);
/* The context of a stream's events as known so far, without a call of the driver. */
CUcontext homes_find(const struct throttle_pipe *pipe, CUstream stream);
/* The same from the driver, remembered for that stream; NULL: the driver reports none. */
CUcontext homes_ask(struct throttle_pipe *pipe, CUstream stream);
/* A context other than the pipe's was destroyed, and with it the events of records in it. */
void homes_gone(struct throttle_pipe *pipe, uint32_t tag);

#endif

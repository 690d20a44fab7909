/* SPDX-License-Identifier: Apache-2.0 */
/* The time that the GPU needs to change from another grant's context to ours, measured where it just has to: at the
 * start of an own window, with nothing of ours queued. */
#ifndef SLUICE_SWITCHES_H
#define SLUICE_SWITCHES_H

#include <stdint.h>

#include "interpose/compute/rules/switch.h"
#include "nativecommon/cuda_abi.h"

struct throttle_pipe;

/* Now and then, time an event on that stream until the GPU reaches it, and publish what several such times show. The
 * thread spins meanwhile, at most 2 ms; its launch could not have begun earlier. NULL: does nothing. */
void switches_measure(struct throttle_pipe *pipe, CUstream stream);
/* The process attaches again after a fork: a thread that does not exist here may have been measuring. */
void switches_forget_parent(void);

#endif

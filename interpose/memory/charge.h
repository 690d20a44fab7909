/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory cap as the hooks see it: take before the driver is asked, return when it gave nothing or took it back.
 */
#ifndef SLUICE_CHARGE_H
#define SLUICE_CHARGE_H

#include <stdbool.h>
#include <stdint.h>

#include "interpose/driver/cuda_abi.h"

/* Region device of the calling thread's context. CUDA_SUCCESS; the driver's own error when there is no context;
 * CUDA_ERROR_OUT_OF_MEMORY on a GPU that is not of the grant, where nothing may be had. */
CUresult charge_device(int *ret_device);
/* CUDA_SUCCESS, or CUDA_ERROR_OUT_OF_MEMORY when the grant's limit would be passed even after what is only kept for
 * later was given back. */
CUresult charge_take(int device, uint64_t bytes);
/* The same for managed memory, which may be larger than what is left of the grant where the daemon lets it: what does not
 * fit is not charged, and until this process has freed as much, nothing that it returns lowers the charge. */
CUresult charge_take_managed(int device, uint64_t bytes);
/* Is the grant charged more than its limit? */
bool charge_is_beyond(int device);
/* What may be charged until the grant is so far beyond its limit. */
uint64_t charge_room(int device, uint64_t beyond);
/* What is there already, limit or not. */
void charge_force(int device, uint64_t bytes);
void charge_return(int device, uint64_t bytes);
/* Turn a charge of `have` bytes into one of `want`. On refusal `have` is still charged. */
CUresult charge_resize(int device, uint64_t have, uint64_t want);

/* Called when a charge does not fit: let go what is kept unused on the device; true if any charge went. One for the
 * process; it may be called by several threads at once, with none of our locks held. */
void charge_on_full(bool (*shrink)(int device));

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory cap as the hooks see it: charge before the driver call, return the charge when the driver allocated
 * nothing or freed the memory.
 */
#ifndef SLUICE_CHARGE_H
#define SLUICE_CHARGE_H

#include <stdbool.h>
#include <stdint.h>

#include "nativecommon/cuda_abi.h"

/* Region device of the calling thread's context. CUDA_SUCCESS; the driver's own error when there is no context;
 * CUDA_ERROR_OUT_OF_MEMORY on a GPU outside of the grant, where no allocation is allowed. */
CUresult charge_device(int *ret_device);
/* CUDA_SUCCESS, or CUDA_ERROR_OUT_OF_MEMORY when the charge would exceed the grant's limit even after unused memory was
 * released. */
CUresult charge_take(int device, uint64_t bytes);
/* The same for managed memory, which may exceed the rest of the grant where the daemon allows it: the part that does
 * not fit is not charged, and until this process has freed as much, its frees do not lower the charge. */
CUresult charge_take_managed(int device, uint64_t bytes);
/* True if the grant is charged more than its limit. */
bool charge_is_beyond(int device);
/* Bytes that may be charged until the grant is so far beyond its limit. */
uint64_t charge_room(int device, uint64_t beyond);
/* Charge memory that exists already, beyond the limit if need be. */
void charge_force(int device, uint64_t bytes);
void charge_return(int device, uint64_t bytes);
/* Turn a charge of `have` bytes into one of `want`. On refusal `have` is still charged. */
CUresult charge_resize(int device, uint64_t have, uint64_t want);

/* Called when a charge does not fit: release memory kept unused on the device; true if any charge was returned. One
 * callback for the process; several threads may call it at once, with none of our locks held. */
void charge_on_full(bool (*shrink)(int device));

/* Device memory that NVML reports for this process on a region device. False: unavailable. */
bool overhead_used(int device, uint64_t *ret_bytes);

#define OVERHEAD_EVERY_NS UINT64_C(100000000)

/* The process attaches, and no other thread is in yet: all state was its parent's. */
void overhead_prepare(void);
/* The number of contexts on the device changes by `more`; while there is one, overhead_follow() has something to
 * follow. */
void overhead_contexts(int device, int more);
/* Charge memory that the driver has allocated for itself since, beyond the limit if need be, and return what it has
 * freed; skipped if that was done within the last `every_ns`. */
void overhead_follow(int device, uint64_t every_ns);

#endif

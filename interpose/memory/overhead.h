/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SLUICE_OVERHEAD_H
#define SLUICE_OVERHEAD_H

#include <stdbool.h>
#include <stdint.h>

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

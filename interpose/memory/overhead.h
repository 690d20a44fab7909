/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SLUICE_OVERHEAD_H
#define SLUICE_OVERHEAD_H

#include <stdbool.h>
#include <stdint.h>

/* Device memory the driver's management library says this process uses on a region device. False: cannot be told. */
bool overhead_used(int device, uint64_t *ret_bytes);

#define OVERHEAD_EVERY_NS UINT64_C(100000000)

/* This process attaches, and no other thread is in yet: what is remembered was its parent's. */
void overhead_prepare(void);
/* So many contexts more on the device; while there is one, overhead_follow() has something to follow. */
void overhead_contexts(int device, int more);
/* Charge what the driver has taken by itself since, limit or not, and give back what it no longer has; unless that was done
 * within the last `every_ns`. */
void overhead_follow(int device, uint64_t every_ns);

#endif

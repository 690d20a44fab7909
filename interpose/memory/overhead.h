/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SLUICE_OVERHEAD_H
#define SLUICE_OVERHEAD_H

#include <stdbool.h>
#include <stdint.h>

/* Device memory the driver's management library says this process uses on a region device. False: cannot be told. */
bool overhead_used(int device, uint64_t *ret_bytes);

#endif

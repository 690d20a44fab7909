/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel's clock, past whatever stands in front of libc's: a library that fakes the time for the program would fake
 * the share too. */
#ifndef SLUICE_CLOCK_H
#define SLUICE_CLOCK_H

#include <stdint.h>

/* CLOCK_MONOTONIC in nanoseconds, the scale of every time in the region. */
uint64_t clock_ns(void);

#endif

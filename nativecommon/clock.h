/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel's clock, read past any replacement of libc's: a library that fakes the time for the program would fake the
 * share too. */
#ifndef SLUICE_CLOCK_H
#define SLUICE_CLOCK_H

#include <stdint.h>

/* CLOCK_MONOTONIC in nanoseconds, the scale of every time in the region. */
uint64_t clock_ns(void);

/*
 * A time written by the daemon can only lie in the past. If it is ahead of our clock by more than a second, our clock
 * is behind (a time namespace) and is shifted from now on; otherwise we would wait for times that the other processes
 * of the grant passed long ago.
 */
void clock_follow(uint64_t written_ns);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel's clock, past whatever stands in front of libc's: a library that fakes the time for the program would fake
 * the share too. */
#ifndef SLUICE_CLOCK_H
#define SLUICE_CLOCK_H

#include <stdint.h>

/* CLOCK_MONOTONIC in nanoseconds, the scale of every time in the region. */
uint64_t clock_ns(void);

/*
 * A time that the daemon wrote can lie in the past only. Where it is ahead of our clock by more than a second, ours is
 * behind (a time namespace), and follows it from now on; else we would wait for times that our neighbours in the grant
 * have long passed.
 */
void clock_follow(uint64_t written_ns);

#endif

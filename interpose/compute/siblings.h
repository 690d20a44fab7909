/* SPDX-License-Identifier: Apache-2.0 */
/* The other processes of the grant, as their lines of usage.shm show them. */
#ifndef SLUICE_SIBLINGS_H
#define SLUICE_SIBLINGS_H

#include <stdbool.h>
#include <stdint.h>

/* False: this process has the grant to itself. */
bool siblings_exist(void);
/* Processes of the grant that have more than `above_ns` on the device, and this one. What a thread has drawn and not used
 * counts with the rest. */
uint32_t siblings_busy(int device, uint64_t above_ns);

/* What all the others have had charged, and what of theirs is known to have finished. */
struct siblings_work {
	uint64_t used_ns;
	uint64_t done_ns;
};
struct siblings_work siblings_work(int device);

/* How far this process is ahead of the sibling that waits and has had least, 0 = of none; see fair.h. */
uint64_t siblings_ahead_ns(int device, uint64_t now_ns);

/* This process attaches anew: the books are its parent's. */
void siblings_forget_parent(void);

#endif

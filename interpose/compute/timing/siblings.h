/* SPDX-License-Identifier: Apache-2.0 */
/* The other processes of the grant, from their slots in usage.shm. */
#ifndef SLUICE_SIBLINGS_H
#define SLUICE_SIBLINGS_H

#include <stdbool.h>
#include <stdint.h>

/* False: this process has the grant to itself. */
bool siblings_exist(void);
/* Number of processes of the grant that have more than `above_ns` on the device, this one included. GPU time that a
 * thread has drawn and not used counts. */
uint32_t siblings_busy(int device, uint64_t above_ns);

/* GPU time charged to all the other processes, and the part of it known to have finished. */
struct siblings_work {
	uint64_t used_ns;
	uint64_t done_ns;
};
struct siblings_work siblings_work(int device);

/* Lead of this process over the waiting sibling that has used least, 0 = no sibling waits; see fair.h. */
uint64_t siblings_ahead_ns(int device, uint64_t now_ns);

/* Called in a child after fork: the recorded values are its parent's. */
void siblings_forget_parent(void);

#endif

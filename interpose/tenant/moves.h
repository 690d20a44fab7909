/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SLUICE_MOVES_H
#define SLUICE_MOVES_H

#include <stdbool.h>
#include <stddef.h>

/*
 * Waiting while the grant's memory is checkpointed on the host.
 *
 * A driver holds every call of a process that it has checkpointed. Drivers 580 and 595 are reported to let a
 * synchronising call crash when it is the first one they hold; so those calls wait here, before they reach the driver.
 * Launches and copies wait at the gate anyway.
 */

/* Returns when the memory is back on its GPUs; at once without a grant, and when the grant has ended. */
void away_wait(void);
/* True if the memory is on the host, or being moved there. */
bool away_now(void);

/* Memory that a forked child finds zeroed, however it was forked: for state that belongs to one process and not to its
 * children. */

/* `bytes` of it, published at *at by the first thread that calls and never freed; NULL: no memory, or a kernel before
 * Linux 4.14. */
void *wiped_memory(void **at, size_t bytes);

/* Moves this process to another slot when the daemon has given its slot away. */

/* Register again if the generation of our slot has moved. Three loads when it has not. Only for threads to which
 * guest_self() has returned a tenant; called from slow paths. */
void move_if_given_away(void);

#endif

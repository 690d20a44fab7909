/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waiting while the grant's memory is checkpointed on the host.
 *
 * A driver holds every call of a process that it has checkpointed. Drivers 580 and 595 are reported to let a
 * synchronising call crash when it is the first one they hold; so those calls wait here, before they reach the driver.
 * Launches and copies wait at the gate anyway.
 */
#ifndef SLUICE_AWAY_H
#define SLUICE_AWAY_H

#include <stdbool.h>

/* Returns when the memory is back on its GPUs; at once without a grant, and when the grant has ended. */
void away_wait(void);
/* True if the memory is on the host, or being moved there. */
bool away_now(void);

#endif

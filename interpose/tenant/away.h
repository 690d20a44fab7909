/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waiting while the grant's memory is on the host.
 *
 * A driver holds every call of a process that it has checkpointed. Drivers 580 and 595 are reported to let a synchronising
 * call crash when it is the first one they hold; so those wait here, where the driver does not see them. Launches and
 * copies wait at the gate anyway.
 */
#ifndef SLUICE_AWAY_H
#define SLUICE_AWAY_H

#include <stdbool.h>

/* Until the memory is back on its GPUs; at once without a grant, and when the grant is over. */
void away_wait(void);
/* Is it on the host, or on its way? */
bool away_now(void);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Another slot for this process, when the daemon has given its own away. */
#ifndef SLUICE_MOVE_H
#define SLUICE_MOVE_H

/* Register again if the generation of our slot has moved. Three loads when it has not. For a thread that guest_self() has
 * answered; called from slow paths. */
void move_if_given_away(void);

#endif

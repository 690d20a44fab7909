/* SPDX-License-Identifier: Apache-2.0 */
/* Moves this process to another slot when the daemon has given its slot away. */
#ifndef SLUICE_MOVE_H
#define SLUICE_MOVE_H

/* Register again if the generation of our slot has moved. Three loads when it has not. Only for threads to which
 * guest_self() has returned a tenant; called from slow paths. */
void move_if_given_away(void);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the calls of a process wait while another one has locked it for a checkpoint.
 *
 * A call looks at the door when it begins, and stands inside while it changes what a checkpoint moves: the account of a
 * device, or a context's queue. Who locks shuts the door first and then waits until nobody stands inside, so nothing
 * moves under it. A process that is killed inside is forgotten with its record.
 */
#ifndef SIM_GATE_H
#define SIM_GATE_H

#include "simgpu/node/state.h"

/* Until the door is open. */
void sim_gate_wait(const struct sim_client *client);
/* The same, and then it stands inside until it leaves; not twice in one thread. */
void sim_gate_enter(struct sim_client *client);
void sim_gate_leave(struct sim_client *client);

static inline void sim_gate_pass(const struct sim_client *client)
{
	if (__builtin_expect(__atomic_load_n(&client->checkpoint, __ATOMIC_RELAXED) != 0, 0))
		sim_gate_wait(client);
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The place where calls of a process wait while another process has locked it for a checkpoint.
 *
 * A call passes the gate when it begins, and counts as inside while it changes state that a checkpoint moves: the
 * account of a device, or a context's queue. The locking process shuts the gate first and then waits until no thread is
 * inside, so no such state changes under it. The count of a process that is killed inside ends with its record.
 */
#ifndef SIM_GATE_H
#define SIM_GATE_H

#include "simgpu/node/state.h"

/* Wait until the gate is open. */
void sim_gate_wait(const struct sim_client *client);
/* The same, and then the thread counts as inside until it leaves; not twice in one thread. */
void sim_gate_enter(struct sim_client *client);
void sim_gate_leave(struct sim_client *client);

static inline void sim_gate_pass(const struct sim_client *client)
{
	if (__builtin_expect(__atomic_load_n(&client->checkpoint, __ATOMIC_RELAXED) != 0, 0))
		sim_gate_wait(client);
}

#endif

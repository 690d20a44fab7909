/* SPDX-License-Identifier: Apache-2.0 */
/* The gate of a process that can be checkpointed: see gate.h. */
#include "simgpu/cuda/base/gate.h"

#include <time.h>

void sim_gate_wait(const struct sim_client *client)
{
	struct timespec nap = { .tv_nsec = 200000 }; /* a process is locked for seconds: a fraction is exact enough */

	while (__atomic_load_n(&client->checkpoint, __ATOMIC_SEQ_CST) != 0)
		nanosleep(&nap, NULL);
}

void sim_gate_enter(struct sim_client *client)
{
	for (;;) {
		/* G1: pairs with the store and the load in shut(), checkpoint.c: one of the two sees the other. */
		__atomic_add_fetch(&client->inside, 1, __ATOMIC_SEQ_CST);
		if (__atomic_load_n(&client->checkpoint, __ATOMIC_SEQ_CST) == 0)
			return;
		sim_gate_leave(client);
		sim_gate_wait(client);
	}
}

void sim_gate_leave(struct sim_client *client)
{
	__atomic_sub_fetch(&client->inside, 1, __ATOMIC_RELEASE);
}

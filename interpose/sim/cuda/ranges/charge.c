/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Charging a device. Memory that is kept, but not in use, stands above this: who keeps some says so, and is asked for it
 * when a device is full, as shrinkers are in a kernel.
 */
#include "interpose/sim/cuda/ranges/charge.h"

#include <stddef.h>

static void (*give_back)(struct sim_device *device); /* under the memory lock; NULL = nobody keeps anything */

void sim_charge_on_full(void (*who)(struct sim_device *device))
{
	give_back = who;
}

bool sim_charge(struct sim_device *device, uint64_t bytes)
{
	struct sim_process *p = sim_process();
	bool fits = false;

	sim_lock(device->gpu);
	for (int attempt = 0; attempt < 2 && !fits; attempt++) {
		fits = bytes <= device->model->memory_bytes &&
		       sim_used_bytes(p->state, device->gpu_index) <= device->model->memory_bytes - bytes;
		if (!fits && attempt == 0)
			sim_reap(p->state, device->gpu, true); /* the dead may still seem to hold it */
	}
	if (fits)
		p->client->used_bytes[device->gpu_index] += bytes;
	sim_unlock(device->gpu);
	return fits;
}

void sim_uncharge(struct sim_device *device, uint64_t bytes)
{
	sim_lock(device->gpu);
	sim_process()->client->used_bytes[device->gpu_index] -= bytes;
	sim_unlock(device->gpu);
}

bool sim_charge_hard(struct sim_device *device, uint64_t bytes)
{
	if (sim_charge(device, bytes))
		return true;
	if (give_back)
		give_back(device);
	return sim_charge(device, bytes);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Charging a device. Code that keeps unused memory lies above this layer: it registers a callback, which is called when
 * a device is full, like shrinkers in a kernel.
 */
#include "simgpu/cuda/ranges/ranges.h"

#include <stddef.h>

#include "simgpu/cuda/base/call.h"
#include "simgpu/node/wall.h"

static void (*give_back)(struct sim_device *device); /* under the memory lock; NULL = no callback registered */

void sim_charge_on_full(void (*callback)(struct sim_device *device))
{
	give_back = callback;
}

static bool charge(struct sim_device *device, uint64_t bytes, bool managed)
{
	struct sim_process *p = sim_process();
	bool fits = false;

	sim_gate_enter(p->client);
	sim_lock(device->gpu);
	for (int attempt = 0; attempt < 2 && !fits; attempt++) {
		fits = bytes <= device->model->memory_bytes &&
		       sim_used_bytes(p->state, device->gpu_index) <= device->model->memory_bytes - bytes &&
		       (managed || bytes <= sim_wall_room(p->state, device->gpu_index, p->client->cgroup));
		if (!fits && attempt == 0)
			sim_reap(p->state, device->gpu, true); /* dead processes may still be counted */
	}
	if (fits)
		p->client->used_bytes[device->gpu_index] += bytes;
	if (fits && managed)
		p->client->managed_bytes[device->gpu_index] += bytes;
	sim_unlock(device->gpu);
	sim_gate_leave(p->client);
	return fits;
}

static void uncharge(struct sim_device *device, uint64_t bytes, bool managed)
{
	struct sim_client *client = sim_process()->client;

	sim_gate_enter(client);
	sim_lock(device->gpu);
	client->used_bytes[device->gpu_index] -= bytes;
	if (managed)
		client->managed_bytes[device->gpu_index] -= bytes;
	sim_unlock(device->gpu);
	sim_gate_leave(client);
}

static bool charge_hard(struct sim_device *device, uint64_t bytes, bool managed)
{
	if (charge(device, bytes, managed))
		return true;
	if (give_back)
		give_back(device);
	return charge(device, bytes, managed);
}

bool sim_charge(struct sim_device *device, uint64_t bytes)
{
	return charge(device, bytes, false);
}

void sim_uncharge(struct sim_device *device, uint64_t bytes)
{
	uncharge(device, bytes, false);
}

void sim_uncharge_managed(struct sim_device *device, uint64_t bytes)
{
	uncharge(device, bytes, true);
}

bool sim_charge_hard(struct sim_device *device, uint64_t bytes)
{
	return charge_hard(device, bytes, false);
}

bool sim_charge_managed(struct sim_device *device, uint64_t bytes)
{
	return charge_hard(device, bytes, true);
}

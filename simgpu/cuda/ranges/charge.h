/* SPDX-License-Identifier: Apache-2.0 */
/* This process's use of a device's memory, as the node counts it. */
#ifndef SIM_CHARGE_H
#define SIM_CHARGE_H

#include "simgpu/cuda/base/process.h"

/* false = the device is full, or the cgroup's limit is reached. */
bool sim_charge(struct sim_device *device, uint64_t bytes);
void sim_uncharge(struct sim_device *device, uint64_t bytes);
/* The same for memory charged as managed memory. */
void sim_uncharge_managed(struct sim_device *device, uint64_t bytes);
/* Charge; if that fails, have unused memory released and try again. With the memory lock held. */
bool sim_charge_hard(struct sim_device *device, uint64_t bytes);
/* The same for managed memory, which no cgroup limit counts. */
bool sim_charge_managed(struct sim_device *device, uint64_t bytes);
/* Register the callback that releases unused memory when a device is full. With the memory lock held. */
void sim_charge_on_full(void (*give_back)(struct sim_device *device));

#endif

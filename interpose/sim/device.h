/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One simulated device as its clients use it: lanes to queue work in, waits, memory accounting.
 */
#ifndef SIM_DEVICE_H
#define SIM_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "interpose/sim/node.h"

/* Simulate to `now_ns` and make what completed visible. */
void sim_device_advance(unsigned device, uint64_t now_ns);

/* The same for every device: work on one may wait for work on another. */
void sim_devices_advance(uint64_t now_ns);

/* A copy of the newest state. */
void sim_device_state(unsigned device, struct timeline *ret_state);

static inline uint64_t sim_lane_done(unsigned device, unsigned lane)
{
	/* T1: pairs with the release store in publish() */
	return __atomic_load_n(&sim_node->device[device].lane[lane].done, __ATOMIC_ACQUIRE);
}

/* Sleep and then spin until `lane` has completed `ticket` operations. Returns early, false, if the device is lost. */
bool sim_lane_wait(unsigned device, unsigned lane, uint64_t ticket);

/* Take a lane for a new context; -EUSERS if all are taken. */
int sim_lane_claim(unsigned device);

/* Cancel what is queued and give the lane back. */
void sim_lane_release(unsigned device, unsigned lane);

/* What all live clients hold; `reap` looks for dead ones first. */
uint64_t sim_memory_used(unsigned device, bool reap);

/* Count `bytes` for this client, or return false and count nothing if they do not fit. */
bool sim_memory_take(unsigned device, uint64_t bytes);
void sim_memory_give(unsigned device, uint64_t bytes);

#endif

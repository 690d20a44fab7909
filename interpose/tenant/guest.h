/* SPDX-License-Identifier: Apache-2.0 */
/*
 * This process as a tenant: the mapped region, its slot, and which CUDA device is which GPU of the grant.
 *
 * Attached by the first cuInit, lost in a forked child (the state lives in a MADV_WIPEONFORK page), found again by
 * the child's own cuInit. Hooks ask two questions only: "are we enforcing here?" (guest_enter) and "which device of
 * the region is this?".
 */
#ifndef SLUICE_GUEST_H
#define SLUICE_GUEST_H

#include <stdbool.h>
#include <stdint.h>

#include "interpose/driver/cuda_abi.h"
#include "interpose/tenant/guest_view.h"

/* NULL until cuInit attached this process, and again in a forked child. A plain load: safe on the launch path. */
const struct sluice_guest *guest_self(void);

/* Attach (first cuInit): 0, or a negative errno after one clear line on stderr. `prepare` is called by the one thread that
 * attaches, before any other is let in: false is a refusal for want of wiped memory. */
int guest_attach(bool (*prepare)(void));
/* After the driver's own cuInit: find which ordinal is which GPU of the grant. From then on guest_self() answers. */
void guest_find_devices(void);
/* Say once on stderr why this process gets no GPU. */
void guest_refuse(const char *why);

/* True when the call must be accounted: attached, and not called by the driver or by ourselves from inside a hook.
 * Pairs with guest_leave() when it returned true. */
bool guest_enter(void);
void guest_leave(void);

/* Region device of the calling thread's current context, or -1. Cached per thread; forgotten by the context hooks. */
int guest_current_device(void);
void guest_forget_current_device(void); /* called by every hook that changes the current context */
int guest_device_of_ordinal(CUdevice ordinal);
/* A tag of the calling thread's current context, for telling whose allocations go when it is destroyed. */
uint32_t guest_current_context(void);
uint32_t guest_context_tag(CUcontext context);

/* Our slot in usage.shm. The daemon may give it away at any time (move.h), so nobody keeps the number, or a pointer that
 * comes of it, over a wait. */
uint32_t guest_slot(void);
/* This process's line for a device: its only writer process is ours. `charged_bytes` is tally.c's alone. */
struct sluice_usage_device *guest_usage(int device);
/* The virtual clock all processes of the grant share on a device. */
static inline uint64_t *guest_shared_tat(int device)
{
	return &guest_self()->usage->shared[device].tat_ns;
}
/* A slow path was here. */
void guest_heartbeat(uint64_t now_ns);
/* This process as the host numbers it; 0: the daemon has not said. */
uint32_t guest_host_pid(void);
/* The last good copy of the limits of a device, refreshed when the region's epoch moved. Never fails. */
void guest_read_device(int device, struct sluice_policy_device *ret_device);
/* What may be charged on a device now: UINT64_MAX if memory is not enforced, 0 if the grant is revoked. */
uint64_t guest_memory_limit(int device);
/* Managed memory may be larger than what is left of the grant: SLUICE_FLAG_MANAGED_BEYOND. */
bool guest_managed_beyond(int device);
/* A symbol, a private table of the driver was handed out that we know nothing about. */
void guest_count_unknown_symbol(void);
void guest_count_unknown_table(void);

#endif

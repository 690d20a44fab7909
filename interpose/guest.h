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

#include "interpose/cuda_abi.h"
#include "interpose/region.h"

struct sluice_guest {
	const struct sluice_policy *policy; /* read-only mapping */
	struct sluice_usage *usage;
	uint32_t slot;
	uint32_t device_count; /* CUDA ordinals of this process */
	uint64_t generation;
	int8_t device_of_ordinal[64]; /* CUDA ordinal -> index into policy->dev, -1 = not of this grant */
};

/* NULL until cuInit attached this process, and again in a forked child. A plain load: safe on the launch path. */
const struct sluice_guest *guest_self(void);

/* Attach (first cuInit): 0, or a negative errno after one clear line on stderr. */
int guest_attach(void);
/* After the driver's own cuInit: find which ordinal is which GPU of the grant. From then on guest_self() answers. */
void guest_find_devices(void);
/* The driver the region orders us to use, or NULL: search. Needs no slot. */
const char *guest_driver_path(void);
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

/* This process's line for a device: its only writer process is ours. */
struct sluice_usage_device *guest_usage(int device);
/* The last good copy of the limits of a device, refreshed when the region's epoch moved. Never fails. */
void guest_read_device(int device, struct sluice_policy_device *ret_device);
/* What may be charged on a device now: UINT64_MAX if memory is not enforced, 0 if the grant is revoked. */
uint64_t guest_memory_limit(int device);
/* Managed memory may be larger than what is left of the grant: SLUICE_FLAG_MANAGED_BEYOND. */
bool guest_managed_beyond(int device);
/* A symbol, a private table of the driver was handed out that we know nothing about. */
void guest_count_unknown_symbol(void);
void guest_count_unknown_table(void);
/* Re-register when the daemon gave our slot away (generation moved). Called from slow paths. */
void guest_check_generation(void);

#endif

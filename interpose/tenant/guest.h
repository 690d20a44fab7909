/* SPDX-License-Identifier: Apache-2.0 */
/*
 * This process as a tenant: the mapped region, its slot, and the mapping from CUDA devices to GPUs of the grant.
 *
 * Attached by the first cuInit, lost in a forked child (the state lives in a MADV_WIPEONFORK page), attached again by
 * the child's own cuInit. Hooks need two answers only: "is this call enforced?" (guest_enter) and "which device of the
 * region is this?".
 */
#ifndef SLUICE_GUEST_H
#define SLUICE_GUEST_H

#include <stdbool.h>
#include <stdint.h>

#include "nativecommon/cuda_abi.h"
#include "interpose/tenant/guest_view.h"

/* NULL until cuInit attached this process, and again in a forked child. A plain load: safe on the launch path. */
const struct sluice_guest *guest_self(void);

/* Attach (first cuInit): 0, or a negative errno after one clear line on stderr. `prepare` is called by the attaching
 * thread before any other is let in; when it returns false, wiped memory is missing and attaching fails. */
int guest_attach(bool (*prepare)(void));
/* After the driver's own cuInit: map ordinals to GPUs of the grant. From then on guest_self() returns this process. */
void guest_find_devices(void);
/* Print once on stderr why this process gets no GPU. */
void guest_refuse(const char *why);
/* One line on stderr, once, when the grant has no room for a context. */
void guest_note_no_room(uint64_t bytes, uint64_t left_bytes);

/* True when the call must be charged: the process is attached, and the call does not come from the driver or from
 * inside a hook. If it returned true, guest_leave() must follow. */
bool guest_enter(void);
void guest_leave(void);

/* Region device of the calling thread's current context, or -1. Cached per thread; the context hooks drop the cached
 * value. */
int guest_current_device(void);
void guest_forget_current_device(void); /* called by every hook that changes the current context */
int guest_device_of_ordinal(CUdevice ordinal);
/* A tag of the calling thread's current context, to find the allocations that end when it is destroyed. */
uint32_t guest_current_context(void);
uint32_t guest_context_tag(CUcontext context);

/* Our slot in usage.shm. The daemon may give it away at any time (move.h), so no caller keeps the number, or a pointer
 * derived from it, over a wait. */
uint32_t guest_slot(void);
/* This process's line for a device, written by this process only. `charged_bytes` is tally.c's alone. */
struct sluice_usage_device *guest_usage(int device);
/* The virtual clock that all processes of the grant share on a device. */
static inline uint64_t *guest_shared_tat(int device)
{
	return &guest_self()->usage->shared[device].tat_ns;
}
/* The cost of a change of contexts on a device, as this grant's programs measured it. */
static inline uint32_t *guest_shared_switch(int device)
{
	return &guest_self()->usage->shared[device].switch_ns;
}
/* Records that a slow path ran. */
void guest_heartbeat(uint64_t now_ns);
/* A thread begins (1) or ends (-1) to wait at the gate. The daemon sees the number. */
void guest_waits(int change);
/* The pid of this process on the host; 0: not written by the daemon yet. */
uint32_t guest_host_pid(void);
/* The last good copy of the limits of a device, refreshed when the region's epoch changed. Never fails. */
void guest_read_device(int device, struct sluice_policy_device *ret_device);
/* The bytes that may be charged on a device now: UINT64_MAX if memory is not enforced, 0 if the grant is revoked. */
uint64_t guest_memory_limit(int device);
/* Managed memory may exceed the rest of the grant: SLUICE_FLAG_MANAGED_BEYOND. */
bool guest_managed_beyond(int device);
/* Count a symbol or a private table of the driver that was handed out and is in no list. */
void guest_count_unknown_symbol(void);
void guest_count_unknown_table(void);
/* The driver refused an event for a launch that had to be timed. */
void guest_count_failed_record(void);

#endif

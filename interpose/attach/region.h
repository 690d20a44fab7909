/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The operations on a region: both sides of every ordering pair named in proto/region.h.
 *
 * Linked into the interposer, and built alone as libsluice_region.so for the daemon, which calls the first half by
 * ctypes because Python has no release store. Every fallible function returns 0 or a negative errno; `ret_` parameters
 * are written on success only. No function allocates, locks, logs or reads a clock.
 */
#ifndef SLUICE_REGION_API_H
#define SLUICE_REGION_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/region.h"

#define SLUICE_API __attribute__((visibility("default")))

/* --- the daemon's side: policy.shm mapped read-write, one writer ------------------------------------------------ */

/* Fill a zeroed policy page from `draft` (sizes, magic and versions are set here) and release it to readers (R1). */
SLUICE_API int sluice_policy_publish(struct sluice_policy *policy, const struct sluice_policy *draft);
/* After a restart: make an odd seq even again by rewriting every line A from `draft`. -EBADMSG: not a region of
 * ours. */
SLUICE_API int sluice_policy_recover(struct sluice_policy *policy, const struct sluice_policy *draft);
/* Replace line A of one device under the seqlock (R2), bump epoch, wake waiters (R5). */
SLUICE_API int sluice_policy_set_limits(struct sluice_policy *policy, uint32_t device,
                                        const struct sluice_policy_device *limits);
/* Replace line B of one device word by word (R6); waiters are woken when `wake` is set. */
SLUICE_API int sluice_policy_set_turn(struct sluice_policy *policy, uint32_t device,
                                      const struct sluice_policy_device *turn, bool wake);
/* Bump wake and FUTEX_WAKE every waiter on the page. */
SLUICE_API int sluice_policy_wake(struct sluice_policy *policy);
SLUICE_API void sluice_policy_heartbeat(struct sluice_policy *policy, uint64_t now_ns);
SLUICE_API void sluice_policy_set_population(struct sluice_policy *policy, uint32_t live_slots, uint32_t slot_high);
/* Publish an owner for a free slot (R3): `entry->generation` is ignored, the new odd generation is returned. */
SLUICE_API int sluice_policy_own_slot(struct sluice_policy *policy, uint32_t slot,
                                      const struct sluice_policy_entry *entry, uint64_t *ret_generation);
/* Mark a slot free: its generation becomes even. Zero its usage with pwrite() before calling own_slot again. */
SLUICE_API int sluice_policy_free_slot(struct sluice_policy *policy, uint32_t slot);

/* --- both sides ---------------------------------------------------------------------------------------------- */

/* Check that a mapping or copy of `bytes` bytes is a region of a known version. -EAGAIN: not published yet; -EPROTO:
 * other major version; -EBADMSG: corrupt; -ESTALE: made under another boot (pass NULL to skip that check). */
SLUICE_API int sluice_policy_check(const struct sluice_policy *policy, size_t bytes, const uint8_t boot_id[16]);
SLUICE_API int sluice_usage_check(const struct sluice_usage *usage, size_t bytes);
/* Write the header of a zeroed usage file image. */
SLUICE_API void sluice_usage_format(struct sluice_usage *usage);
/* Copy line A and B of a device. 0: consistent; -EAGAIN: 64 tries failed, *ret_device untouched, keep the last copy. */
SLUICE_API int sluice_policy_read_device(const struct sluice_policy *policy, uint32_t device,
                                         struct sluice_policy_device *ret_device);

/* --- the tenant's side: policy.shm read-only, usage.shm read-write --------------------------------------------- */

/* Reserve-then-verify (R4): 0, or -ENOMEM when Σ charged over live slots would pass limit_bytes. Retries at most 3
 * times with jitter, because two racing reservers may both see each other. Counts allocs, denied and peak. */
int sluice_memory_reserve(const struct sluice_policy *policy, struct sluice_usage *usage, uint32_t slot,
                          uint32_t device, uint64_t bytes, uint64_t limit_bytes);
void sluice_memory_release(struct sluice_usage *usage, uint32_t slot, uint32_t device, uint64_t bytes);
/* Σ charged_bytes of all live slots, self-claimed ones included. Saturates. */
SLUICE_API uint64_t sluice_memory_charged(const struct sluice_policy *policy, const struct sluice_usage *usage,
                                          uint32_t device);
/* This process has called exec: the GPU memory of the program before went with it, and the daemon may not have noticed.
 * The charges in that program's slots become 0; `own`, the slot of the new program, is left alone. */
void sluice_slot_forget_before(struct sluice_usage *usage, uint64_t process, uint64_t image, uint32_t own);
/* The slot that the program before had claimed for itself: returns 0 and the index, or -ENOENT. */
int sluice_slot_inherit(const struct sluice_policy *policy, struct sluice_usage *usage, uint32_t ns_pid,
                        uint64_t process, uint64_t image, uint32_t *ret_slot);
/* Take a free slot without the daemon: returns 0 and the index, or -ENOSPC. */
int sluice_slot_claim(const struct sluice_policy *policy, struct sluice_usage *usage, uint32_t ns_pid,
                      uint64_t starttime, uint32_t *ret_slot);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shared-memory contract between the daemon and the tenants of one grant.
 *
 * Two files on a tmpfs of their own, one directory per grant *instance* (never per
 * pod name), so that no two trust domains ever write the same word:
 *
 *   policy.shm   12,288 B   the daemon writes, the tenant maps it read-only
 *   usage.shm   299,008 B   the tenants write; the daemon only pread()s it, and zeroes
 *                           a slot with pwrite() once its owner is known to be dead
 *
 *   policy.shm                               usage.shm
 *      0 ┌───────────────────────────┐          0 ┌───────────────────────────┐
 *        │ header     immutable      │            │ header     informational  │
 *     64 ├───────────────────────────┤         64 ├───────────────────────────┤
 *        │ control    seq, epoch,    │            │ shared[16] 64 B each:     │
 *        │            heartbeat,wake │            │            tat_ns …       │
 *    128 ├───────────────────────────┤       1088 ├───────────────────────────┤
 *        │ dev[16]    128 B each:    │            │ (reserved)                │
 *        │   line A   limits         │       4096 ├───────────────────────────┤
 *        │   line B   turns          │            │ slot[256] 1,152 B each:   │
 *   2176 ├───────────────────────────┤            │   line 0   liveness       │
 *        │ driver_path, nvml_path    │            │   line 1   self claim     │
 *   3200 │ (reserved)                │            │   dev[16]  64 B each      │
 *   4096 ├───────────────────────────┤            │                           │
 *        │ dir[256]   32 B each      │            │                           │
 *  12288 └───────────────────────────┘     299008 └───────────────────────────┘
 *
 * Ordering pairs (region.c is the one implementation of each side):
 *   R1  header.magic     release store in publish      / acquire load in attach
 *   R2  control.seq      seqlock, one writer           / bounded reader, 64 tries, then the last good copy
 *   R3  dir[].generation release store after the rest  / acquire load before using the entry
 *   R4  charged          seq_cst add, then seq_cst sum / the same: of two racing reservers one sees the other
 *   R5  wake             release add + FUTEX_WAKE      / acquire load before FUTEX_WAIT, always with a timeout
 *   R6  line B           one release store per word    / acquire load per word; no group is assumed consistent:
 *                        a torn group costs one mistimed chunk, and the next load sees the new plan
 *
 * Rules: fixed-width, naturally aligned words; no locks; no seqlock written by a tenant; nothing is ever moved; no text
 * is read from usage.shm; every value read from it is range-checked.
 *
 * Versions: a new major refuses to attach. A minor may only give meaning to reserved bytes that older writers
 * leave zero, and zero must mean "as before". tests/golden/region-v1.json freezes the layout of v1.
 */
#ifndef SLUICE_REGION_H
#define SLUICE_REGION_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#define SLUICE_POLICY_MAGIC UINT64_C(0x3130594c4f504c53) /* "SLPOLY01" in memory */
#define SLUICE_USAGE_MAGIC UINT64_C(0x3130474153554c53)  /* "SLUSAG01" in memory */
#define SLUICE_REGION_MAJOR 1
/* 1: process and image of a usage slot; 2: its status, switch_ns of a plan; 3: switch_ns of a GPU's shared words */
#define SLUICE_REGION_MINOR 3

#define SLUICE_LINE 64        /* one cache line: one writer */
#define SLUICE_MAX_DEVICES 16 /* GPUs in a grant */
#define SLUICE_MAX_SLOTS 256  /* processes in a grant */
#define SLUICE_PATH_BYTES 512

#define SLUICE_POLICY_BYTES 12288
#define SLUICE_USAGE_BYTES 299008

#define SLUICE_POLICY_FILE "policy.shm"
#define SLUICE_USAGE_FILE "usage.shm"
#define SLUICE_SOCKET_FILE "register.sock"

/* sluice_policy_device.flags */
#define SLUICE_FLAG_ENFORCE_MEMORY (UINT32_C(1) << 0)
#define SLUICE_FLAG_ENFORCE_SM (UINT32_C(1) << 1)
#define SLUICE_FLAG_PAUSED (UINT32_C(1) << 2)         /* launches are held, memory stays */
#define SLUICE_FLAG_REVOKED (UINT32_C(1) << 3)        /* the grant is over: allocations and launches are refused */
#define SLUICE_FLAG_MANAGED_BEYOND (UINT32_C(1) << 4) /* managed memory may be larger than what is left of the grant */
#define SLUICE_FLAG_SPILLED (UINT32_C(1) << 5)        /* memory is on the host, or on its way: waiting calls are held */

/* sluice_policy_device.turn_mode: how tenants of one GPU take turns, see docs/node/throttle.md */
enum sluice_turn_mode {
	SLUICE_TURN_OFF = 0,   /* one elastic tenant: nothing to arbitrate */
	SLUICE_TURN_CAP = 1,   /* own cap only */
	SLUICE_TURN_LEASE = 2, /* own cap, and launches only inside the tenant's own window of the period */
};

/* Lives at policy.shm offset 0. The daemon writes it once; magic goes last (R1). */
struct sluice_policy_header {
	uint64_t magic;
	uint16_t major;
	uint16_t minor;
	uint32_t header_bytes; /* offset of dir[] */
	uint32_t total_bytes;
	uint32_t device_count; /* 1..16 valid entries of dev[] */
	uint32_t slot_count;
	uint32_t slot_bytes;
	uint8_t grant_uuid[16];
	uint8_t boot_id[16]; /* boot id of the kernel under which the region was made; another id means stale */
};

struct sluice_policy_control {
	uint32_t seq;          /* R2: odd while the daemon writes the line A of any device */
	uint32_t live_slots;   /* registered processes; 1: this process's launches are all of the grant's */
	uint64_t epoch;        /* bumped on every change of limits */
	uint64_t heartbeat_ns; /* CLOCK_MONOTONIC of the daemon's last planning tick */
	uint64_t lease_end_ns; /* reserved: copied, not used by v1 readers */
	uint32_t slot_high;    /* no live slot has an index at or above this, except self-claimed ones */
	uint32_t wake;         /* R5: futex word */
	uint8_t reserved[24];
};

/* One GPU of the grant. Line A changes on a resize (R2); line B changes with every plan (R6). */
struct sluice_policy_device {
	/* line A: limits */
	uint64_t memory_limit_bytes;
	uint64_t physical_bytes;
	uint64_t burst_ns; /* wall time by which the virtual clock may run ahead */
	/* Estimated GPU time that may be outstanding, all processes of the grant together: processes with work
	 * outstanding have equal parts of it. Two launches of each context are always allowed. */
	uint64_t inflight_ns;
	uint64_t chunk_ns;  /* GPU time that a thread draws from the grant at once */
	uint32_t share_ppm; /* the cap in parts per million of the GPU's time; 0 = uncapped */
	uint32_t flags;
	uint8_t gpu_uuid[16]; /* as CUDA reports it */
	/* line B: turns */
	uint64_t lease_origin_ns; /* CLOCK_MONOTONIC; windows start at origin + k * period */
	uint64_t lease_period_ns;
	uint64_t lease_quantum_ns; /* length of this tenant's window */
	uint64_t contention_epoch; /* bumped with every plan that has more than one tenant on the GPU */
	uint32_t turn_mode;
	uint32_t active_grants; /* tenants seen with work outstanding at the last plan, this one included */
	uint32_t plan_ppm;      /* share this plan gives the tenant; 0 = uncapped */
	uint32_t switch_ns;     /* time that a change of contexts takes; a window begins with one */
	uint8_t reserved[16];
};

/* The owner of slot i. The daemon writes it from SO_PEERCRED, never from the tenant's message. */
struct sluice_policy_entry {
	uint64_t generation; /* odd while the slot is owned (R3); never reused, 64 bits do not wrap */
	uint64_t starttime;  /* field 22 of /proc/PID/stat, against pid reuse */
	uint32_t host_pid;
	uint32_t ns_pid; /* as the process sees itself */
	uint32_t flags;  /* reserved: copied, not used by v1 readers */
	uint32_t reserved;
};

struct sluice_policy {
	struct sluice_policy_header header;
	struct sluice_policy_control control;
	struct sluice_policy_device dev[SLUICE_MAX_DEVICES];
	/* the real libcuda.so.1 and libnvidia-ml.so.1; NUL-terminated; empty = search as the loader does */
	uint8_t driver_path[SLUICE_PATH_BYTES];
	uint8_t nvml_path[SLUICE_PATH_BYTES];
	uint8_t reserved[896];
	struct sluice_policy_entry dir[SLUICE_MAX_SLOTS];
};

/* sluice_usage_slot.status */
#define SLUICE_SLOT_COUNTS (UINT32_C(1) << 31)   /* the guest counts the threads that wait */
#define SLUICE_SLOT_WAITING UINT32_C(0x0000ffff) /* threads at the gate; valid while the heartbeat is recent */

/* Written by tenants: the daemon range-checks every field before using it. */
struct sluice_usage_header {
	uint64_t magic;
	uint16_t major;
	uint16_t minor;
	uint32_t claim_high; /* self-claimed slots lie below this index */
	uint8_t reserved[48];
};

/* Words that all processes of the grant share, per GPU. Atomics only. */
struct sluice_usage_shared {
	uint64_t tat_ns;    /* theoretical arrival time of the virtual clock, CLOCK_MONOTONIC scale */
	uint32_t switch_ns; /* time that a change of contexts takes, as the grant's programs measured it; 0 = not yet */
	uint8_t reserved[52];
};

/* One line per (process, GPU): one writer process, several threads, atomics only. */
struct sluice_usage_device {
	uint64_t charged_bytes; /* R4: reserved before the driver call, so never below the truth */
	uint64_t consumed_ns;   /* GPU time charged, after corrections */
	uint64_t completed_ns;  /* the part of it known to have finished; the difference is in flight */
	uint64_t launches;
	uint64_t allocs;
	uint64_t denied;       /* allocations refused by the cap */
	uint64_t peak_bytes;   /* highest charged_bytes */
	uint64_t throttled_ns; /* wall time threads spent waiting at the gate */
};

struct sluice_usage_slot {
	/* line 0: written rarely */
	uint64_t generation_seen; /* the generation under which the process registered */
	uint64_t heartbeat_ns;    /* CLOCK_MONOTONIC of the last slow path */
	uint64_t hook_mask;       /* which groups of hooks are in place */
	uint64_t unknown_symbols; /* driver functions handed out that are in none of the interposer's lists */
	uint32_t ns_pid;
	uint32_t status;         /* SLUICE_SLOT_COUNTS | threads that wait at the gate now; 0: an older guest */
	uint64_t unknown_tables; /* private driver tables that are in no list; older guests count both above */
	/* the program to which these charges belong; 0 = not recorded (older guests) */
	uint64_t process; /* hash of pid namespace, pid and start time: constant over every exec of the process */
	uint64_t image;   /* address where its stack begins (field 28 of /proc/PID/stat): changes with every exec */
	/* line 1: registration while the daemon is away */
	uint64_t self_claim; /* 0 = free, else ns_pid << 32 | tag; taken by compare-and-swap */
	uint64_t claim_starttime;
	uint64_t failed_records; /* launches whose time the driver gave no event for: the host waited for them */
	uint8_t reserved1[40];
	struct sluice_usage_device dev[SLUICE_MAX_DEVICES];
};

struct sluice_usage {
	struct sluice_usage_header header;
	struct sluice_usage_shared shared[SLUICE_MAX_DEVICES];
	uint8_t reserved[3008];
	struct sluice_usage_slot slot[SLUICE_MAX_SLOTS];
};

static_assert(sizeof(struct sluice_policy_header) == SLUICE_LINE, "one line, immutable");
static_assert(sizeof(struct sluice_policy_control) == SLUICE_LINE, "one line");
static_assert(sizeof(struct sluice_policy_device) == 2 * SLUICE_LINE, "two lines: limits, turns");
static_assert(offsetof(struct sluice_policy_device, lease_origin_ns) == SLUICE_LINE, "turns have their own line");
static_assert(sizeof(struct sluice_policy_entry) == 32, "frozen since v1");
static_assert(offsetof(struct sluice_policy, dev) == 128, "frozen since v1");
static_assert(offsetof(struct sluice_policy, driver_path) == 2176, "frozen since v1");
static_assert(offsetof(struct sluice_policy, dir) == 4096, "dir starts a page");
static_assert(sizeof(struct sluice_policy) == SLUICE_POLICY_BYTES, "frozen since v1");
static_assert(sizeof(struct sluice_usage_header) == SLUICE_LINE, "one line");
static_assert(sizeof(struct sluice_usage_shared) == SLUICE_LINE, "one line per GPU");
static_assert(sizeof(struct sluice_usage_device) == SLUICE_LINE, "one line per process and GPU");
static_assert(sizeof(struct sluice_usage_slot) == 1152, "frozen since v1");
static_assert(offsetof(struct sluice_usage_slot, self_claim) == SLUICE_LINE, "line 1");
static_assert(offsetof(struct sluice_usage_slot, dev) == 2 * SLUICE_LINE, "line 2 on");
static_assert(offsetof(struct sluice_usage, slot) == 4096, "slots start a page");
static_assert(sizeof(struct sluice_usage) == SLUICE_USAGE_BYTES, "frozen since v1");

#endif

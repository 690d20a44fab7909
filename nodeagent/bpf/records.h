/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * What the programs pass to the child process: one record per event through the ring, and rows of counters in maps.
 * nodeagent/adapters/ebpf/records.py has the same layouts as struct formats; tests/ebpf compares the two.
 */
#ifndef SLUICE_BPF_RECORDS_H
#define SLUICE_BPF_RECORDS_H

#include <linux/types.h>

#define HISTOGRAM_BUCKETS 32
#define MAX_DEVICES 16 /* GPUs in a grant, as in proto/region.h */
#define ANY_MINOR 0xffffffff

enum record_kind { RECORD_OPEN = 1, RECORD_EXEC = 2, RECORD_EXIT = 3 };

struct record {
	__u64 at_ns; /* CLOCK_MONOTONIC */
	__u64 cgroup_id;
	__u32 kind;
	__u32 pid;
	__u32 uid;
	__u32 major; /* valid for an open, as are the next three */
	__u32 minor;
	__u32 access; /* BPF_DEVCG_ACC_* */
	__u32 denied;
	__u32 reserved;
	char command[16];
};

struct device_key {
	__u32 major;
	__u32 minor; /* or ANY_MINOR */
};

struct open_key {
	__u32 pid;
	__u32 major;
	__u32 minor;
	__u32 denied;
};

struct launch_key {
	__u32 pid;
	__u32 device;
};

struct launch_row {
	__u64 launches; /* launches of kernels and graphs */
	__u64 copies;   /* copies and sets */
	__u64 cost_ns;
	__u64 waited_ns;
	__u64 first_ns;
	__u64 last_ns;
	__u64 grant;      /* as the tenant wrote it last */
	__u64 unreadable; /* launches whose event could not be read: counted, without details */
	__u64 wait[HISTOGRAM_BUCKETS];
	__u64 gap[HISTOGRAM_BUCKETS];
};

/* The pid namespace in which the daemon numbers processes; all zero: the kernel's initial one. */
struct pid_namespace {
	__u64 device;
	__u64 inode;
};

/* Indexes into the map `dropped`. */
enum dropped { DROPPED_RECORDS = 0, DROPPED_ROWS = 1, DROPPED_REPEATS = 2, DROPPED_KINDS = 3 };

#endif

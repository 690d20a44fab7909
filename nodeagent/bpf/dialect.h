/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The differences between the two ways to build watch.c: ahead of time by clang for libbpf (SLUICE_PREBUILT), or on the
 * host by bcc. Calls of helpers are written as libbpf has them; bcc has its own syntax for helpers that take a map and
 * refuses them inside macros, so nodeagent/adapters/ebpf/loaders/bcc.py translates them.
 */
#ifndef SLUICE_BPF_DIALECT_H
#define SLUICE_BPF_DIALECT_H

#ifdef SLUICE_PREBUILT

#include <linux/bpf.h>
#include <asm/ptrace.h>
#include <bpf/bpf_helpers.h>
#ifdef __TARGET_ARCH_arm64
#define pt_regs user_pt_regs /* the part of it that user space may know: the registers come first in both */
#endif

typedef __u8 u8;
typedef __u32 u32;
typedef __u64 u64;

#define PROGRAM(section) SEC(section) int
#define MAP(kind, key_type, value_type, name, entries)                                                                 \
	struct {                                                                                                       \
		__uint(type, BPF_MAP_TYPE_##kind);                                                                     \
		__uint(max_entries, entries);                                                                          \
		__type(key, key_type);                                                                                 \
		__type(value, value_type);                                                                             \
	} name SEC(".maps")
#define RING(name, bytes)                                                                                              \
	struct {                                                                                                       \
		__uint(type, BPF_MAP_TYPE_RINGBUF);                                                                    \
		__uint(max_entries, bytes);                                                                            \
	} name SEC(".maps")

#ifdef SLUICE_OLD_KERNEL
/* Before Linux 6.1, programs of the type cgroup/dev may not call bpf_get_current_pid_tgid() or its siblings. They can
 * read both ids from the task; libbpf finds the offsets in the kernel's own BTF, so kernels that have BTF get a
 * separate object. */
#include <bpf/bpf_core_read.h>

struct task_struct {
	int pid;
	int tgid;
	char comm[16];
} __attribute__((preserve_access_index));

static __always_inline u64 current_thread(void)
{
	struct task_struct *task = (void *)bpf_get_current_task();

	return (u64)BPF_CORE_READ(task, tgid) << 32 | (u32)BPF_CORE_READ(task, pid);
}

static __always_inline void current_command(char *command, u32 bytes)
{
	struct task_struct *task = (void *)bpf_get_current_task();

	bpf_probe_read_kernel(command, bytes, &task->comm);
}
#endif

/* Written before the programs are loaded and constant from then on: where it is 0, the verifier drops the code that
 * depends on it, and with it a helper that kernels before 6.10 would refuse. */
const volatile struct pid_namespace pid_namespace = {};
#define PID_NAMESPACE_DEVICE pid_namespace.device
#define PID_NAMESPACE pid_namespace.inode

/* The kernel refuses bpf_probe_read_user() to programs that declare another licence; bcc declares the same one. These
 * files are under both licences, so the declaration is true. */
char LICENSE[] SEC("license") = "GPL";

#else

#include <uapi/linux/bpf.h>
#include <uapi/linux/ptrace.h>

#define PROGRAM(section) int
#define BCC_ARRAY "array"
#define BCC_HASH "hash"
#define BCC_LRU_HASH "lru_hash"
#define MAP(kind, key_type, value_type, name, entries) BPF_TABLE(BCC_##kind, key_type, value_type, name, entries)
#define RING(name, bytes) BPF_RINGBUF_OUTPUT(name, (bytes) / 4096)

#ifndef PID_NAMESPACE /* set by -D when the daemon runs in a pid namespace of its own */
#define PID_NAMESPACE_DEVICE 0
#define PID_NAMESPACE 0
#endif

#endif

#ifndef SLUICE_OLD_KERNEL
#define current_thread bpf_get_current_pid_tgid
#define current_command(command, bytes) bpf_get_current_comm(command, bytes)
#endif

#endif

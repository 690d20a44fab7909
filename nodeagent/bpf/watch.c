/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The programs that watch GPU users from inside the kernel, in one module: maps first, then thin programs.
 *
 * They use only helpers and their contexts and read no structure of the kernel, so one object runs on every kernel
 * since 6.1 (dialect.h has the exception for older ones), and the source compiles against the headers of any version.
 * It is built ahead of time for libbpf, or on the host by bcc: see dialect.h. A full ring or map is counted in
 * `dropped`: a silent gap would look like an idle GPU.
 */
#include "records.h"
#include "dialect.h"

#define SLUICE_BPF
typedef __u32 uint32_t;
typedef __u64 uint64_t;
#include "launch_event.h"

#define REPEAT_NS 1000000000ULL /* a repeated open by one process is reported once a second */

RING(records, 262144); /* bytes: 3,600 records */
MAP(ARRAY, u32, u64, dropped, DROPPED_KINDS);
MAP(HASH, struct device_key, u8, gpu_devices, 64);
MAP(LRU_HASH, struct open_key, u64, opened, 8192);
MAP(LRU_HASH, u64, u8, refused_now, 1024); /* keyed by thread: its open is being refused */
MAP(LRU_HASH, u32, u8, watched_pids, 16384);
MAP(LRU_HASH, u64, u8, watched_cgroups, 4096);
MAP(ARRAY, u32, struct launch_row, zero_row, 1);
MAP(HASH, struct launch_key, struct launch_row, launch_rows, 8192);
MAP(HASH, u32, u64, driver_launches, 8192);

static __always_inline void drop(u32 kind)
{
	u64 *count = bpf_map_lookup_elem(&dropped, &kind);

	if (count)
		__sync_fetch_and_add(count, 1);
}

/* Returns the pid as the daemon numbers processes. When the daemon is in a pid namespace of its own (a machine in a
 * container; Linux 6.10, where the helper became available to all program types), processes of other namespaces have no
 * number: the result is 0, and no event is reported for them. */
static __always_inline u32 current_process(void)
{
	struct bpf_pidns_info here = {};

	if (!PID_NAMESPACE)
		return current_thread() >> 32;
	return bpf_get_ns_current_pid_tgid(PID_NAMESPACE_DEVICE, PID_NAMESPACE, &here, sizeof(here)) ? 0 : here.tgid;
}

static __always_inline void fill(struct record *record, u32 kind)
{
	record->at_ns = bpf_ktime_get_ns();
	record->cgroup_id = bpf_get_current_cgroup_id();
	record->kind = kind;
	record->pid = current_process();
	record->uid = bpf_get_current_uid_gid();
	current_command(record->command, sizeof(record->command));
}

/* --- opens of a GPU ----------------------------------------------------------------------------------------------- */

static __always_inline int is_gpu(u32 major, u32 minor)
{
	struct device_key key = { .major = major, .minor = minor };

	if (bpf_map_lookup_elem(&gpu_devices, &key))
		return 1;
	key.minor = ANY_MINOR;
	return bpf_map_lookup_elem(&gpu_devices, &key) != 0;
}

static __always_inline void tell_open(u32 major, u32 minor, u32 access, u32 denied)
{
	struct open_key key = { .pid = current_process(), .major = major, .minor = minor, .denied = denied };
	u64 now_ns = bpf_ktime_get_ns();
	u64 *last_ns = bpf_map_lookup_elem(&opened, &key);
	struct record record = {};
	u8 one = 1;

	if (!key.pid)
		return;
	if (last_ns && now_ns - *last_ns < REPEAT_NS) {
		drop(DROPPED_REPEATS);
		return;
	}
	bpf_map_update_elem(&opened, &key, &now_ns, BPF_ANY);
	fill(&record, RECORD_OPEN);
	record.major = major;
	record.minor = minor;
	record.access = access;
	record.denied = denied;
	bpf_map_update_elem(&watched_pids, &record.pid, &one, BPF_ANY);
	if (bpf_ringbuf_output(&records, &record, sizeof(record), 0))
		drop(DROPPED_RECORDS);
}

/* At the root of the unified hierarchy: sees every open of a device node by any process, through any system call.
 * Programs of the cgroups below ran before it, and their refusal does not keep it from running. */
PROGRAM("cgroup/dev") see_open(struct bpf_cgroup_dev_ctx *ctx)
{
	u32 major = ctx->major, minor = ctx->minor, access = ctx->access_type >> 16;
	u64 thread = current_thread();

	if (!(access & (BPF_DEVCG_ACC_READ | BPF_DEVCG_ACC_WRITE))) /* mknod, by a runtime that makes a /dev */
		return 1;
	if (!is_gpu(major, minor))
		return 1;
	if (bpf_map_lookup_elem(&refused_now, &thread))
		bpf_map_delete_elem(&refused_now, &thread);
	else
		tell_open(major, minor, access, 0);
	return 1;
}

/* Attached to a cgroup that may open no GPU any more. */
PROGRAM("cgroup/dev") deny_open(struct bpf_cgroup_dev_ctx *ctx)
{
	u32 major = ctx->major, minor = ctx->minor, access = ctx->access_type >> 16;

	u64 thread = current_thread();
	u8 one = 1;

	if (!is_gpu(major, minor))
		return 1;
	tell_open(major, minor, access, 1);
	bpf_map_update_elem(&refused_now, &thread, &one, BPF_ANY);
	return 0;
}

/* --- process lifetimes -------------------------------------------------------------------------------------------- */

static __always_inline int tell_life(u32 kind)
{
	struct record record = {};

	fill(&record, kind);
	if (!record.pid)
		return 0;
	if (bpf_ringbuf_output(&records, &record, sizeof(record), 0))
		drop(DROPPED_RECORDS);
	return 0;
}

PROGRAM("raw_tracepoint/sched_process_exec") see_exec(struct bpf_raw_tracepoint_args *ctx)
{
	u32 pid = current_process();
	u64 cgroup = bpf_get_current_cgroup_id();

	if (!bpf_map_lookup_elem(&watched_pids, &pid) && !bpf_map_lookup_elem(&watched_cgroups, &cgroup))
		return 0;
	return tell_life(RECORD_EXEC);
}

/* Runs for every thread; the main thread stands for the process. If other threads outlive it, the pidfd is what reports
 * the end of the process. */
PROGRAM("raw_tracepoint/sched_process_exit") see_exit(struct bpf_raw_tracepoint_args *ctx)
{
	u64 id = current_thread();
	u32 pid = current_process();

	if ((u32)id != id >> 32 || !bpf_map_lookup_elem(&watched_pids, &pid))
		return 0;
	bpf_map_delete_elem(&watched_pids, &pid);
	return tell_life(RECORD_EXIT);
}

/* --- launches --------------------------------------------------------------------------------------------------- */

static __always_inline u32 bucket_of(u64 ns)
{
	u32 bucket = 0, value = ns;

	if (ns >> 32)
		return HISTOGRAM_BUCKETS - 1;
	if (value >= 1 << 16) {
		value >>= 16;
		bucket += 16;
	}
	if (value >= 1 << 8) {
		value >>= 8;
		bucket += 8;
	}
	if (value >= 1 << 4) {
		value >>= 4;
		bucket += 4;
	}
	if (value >= 1 << 2) {
		value >>= 2;
		bucket += 2;
	}
	return (bucket + (value >= 2)) & (HISTOGRAM_BUCKETS - 1);
}

static __always_inline struct launch_row *row_of(struct launch_key *key)
{
	struct launch_row *row = bpf_map_lookup_elem(&launch_rows, key);
	u32 first = 0;

	if (row)
		return row;
	struct launch_row *zero = bpf_map_lookup_elem(&zero_row, &first);

	if (!zero)
		return 0;
	u8 one = 1;

	bpf_map_update_elem(&launch_rows, key, zero, BPF_NOEXIST);
	bpf_map_update_elem(&watched_pids, &key->pid, &one, BPF_ANY); /* to report its exit and delete its row */
	return bpf_map_lookup_elem(&launch_rows, key);
}

static __always_inline int count_launch(struct pt_regs *ctx, int copy)
{
	struct sluice_launch_event event = {};
	struct launch_key key = { .pid = current_process() };
	u64 now_ns = bpf_ktime_get_ns();
#if defined(__TARGET_ARCH_arm64) || defined(__aarch64__)
	void *from = (void *)ctx->regs[9];
#else
	void *from = (void *)ctx->r11;
#endif
	int unreadable = bpf_probe_read_user(&event, sizeof(event), from) != 0;

	/* Clipped, because a tenant wrote it: this bounds the rows of a process. */
	key.device = event.device & (MAX_DEVICES - 1);
	if (!key.pid)
		return 0;
	struct launch_row *row = row_of(&key);

	if (!row) {
		drop(DROPPED_ROWS);
		return 0;
	}
	u64 last_ns = row->last_ns;

	row->last_ns = now_ns;
	if (last_ns == 0)
		row->first_ns = now_ns;
	else if (now_ns > last_ns) /* threads race, so the order of two launches is unknown */
		__sync_fetch_and_add(&row->gap[bucket_of(now_ns - last_ns)], 1);
	__sync_fetch_and_add(copy ? &row->copies : &row->launches, 1);
	if (unreadable) {
		__sync_fetch_and_add(&row->unreadable, 1);
		return 0;
	}
	row->grant = event.grant;
	__sync_fetch_and_add(&row->cost_ns, event.cost_ns);
	if (event.waited_ns) {
		__sync_fetch_and_add(&row->waited_ns, event.waited_ns);
		__sync_fetch_and_add(&row->wait[bucket_of(event.waited_ns)], 1);
	}
	return 0;
}

/* At sluice:launch and sluice:copy of our own library. */
PROGRAM("uprobe/see_launch") see_launch(struct pt_regs *ctx)
{
	return count_launch(ctx, 0);
}

PROGRAM("uprobe/see_copy") see_copy(struct pt_regs *ctx)
{
	return count_launch(ctx, 1);
}

/* --- audit: at the launch entry points of the real driver -------------------------------------------------------- */

PROGRAM("uprobe/see_driver_launch") see_driver_launch(struct pt_regs *ctx)
{
	u32 pid = current_process();
	u64 *count = bpf_map_lookup_elem(&driver_launches, &pid);
	u64 zero = 0;

	if (!pid)
		return 0;
	if (!count) {
		bpf_map_update_elem(&driver_launches, &pid, &zero, BPF_NOEXIST);
		count = bpf_map_lookup_elem(&driver_launches, &pid);
	}
	if (count)
		__sync_fetch_and_add(count, 1);
	else
		drop(DROPPED_ROWS);
	return 0;
}

/* Measures what a probe costs on this machine: see calibrate() in adapters/ebpf/audit.py. */
PROGRAM("uprobe/see_nothing") see_nothing(struct pt_regs *ctx)
{
	return 0;
}

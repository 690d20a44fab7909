/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All device memory that this process uses on a GPU, read from the real NVML: the difference before and after a context
 * is created is what the context itself takes (a few hundred MiB on real GPUs), undisturbed by other tenants.
 *
 * Drivers take more later: a kernel's code when it is first launched, stacks when their limit is raised. PyTorch's
 * share of it grows by some 330 MiB (H200, driver 580). It is what NVML reports for the process beyond the charge, and
 * is charged.
 *
 *   before = charged; used = NVML's; after = charged
 *   drift += used - max(before, after) - rests of granules      never below 0
 *
 * A charge is above the truth at any time, so drift errs downwards, except by memory freed in between, which the next
 * query corrects. Managed memory is charged but NVML does not count it: so much of the drift stays undetected.
 *
 * A query takes 25 to 40 us, and queries that no call waits for take at most a thousandth of the time. Where NVML is
 * missing, or does not list this process (self-claimed inside a pid namespace), contexts are not charged and the
 * daemon's audit has to find them.
 */
#include "interpose/memory/charge.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nativecommon/clock.h"
#include "interpose/attach/places.h"
#include "nativecommon/footprint.h"
#include "interpose/tenant/moves.h"
#include "interpose/tenant/guest.h"
#include "interpose/tenant/tally.h"
#include "interpose/tenant/visible.h"

/* nvmlProcessInfo_v2_t, which _v3 of the call kept */
struct process_info {
	unsigned int pid;
	unsigned long long used_bytes;
	unsigned int gpu_instance, compute_instance;
};

#define MAX_PROCESSES 512
/* With NVML_INIT_FLAG_NO_ATTACH (2), NVML returns no handle of a GPU before another client has attached it. */
#define NVML_INIT_ATTACH 0

static struct {
	int (*init)(unsigned int flags);
	int (*by_uuid)(const char *uuid, void **device);
	int (*processes)(void *device, unsigned int *count, struct process_info *infos);
} nvml;

enum { UNTRIED, READY, ABSENT };
static int state;

/* Idempotent: racing threads find the same functions. */
static bool load(void)
{
	const struct sluice_guest *guest = guest_self();
	const char *path = (const char *)guest->policy->nvml_path;
	int now = __atomic_load_n(&state, __ATOMIC_ACQUIRE);
	void *handle, *init, *by_uuid, *processes;

	if (now != UNTRIED)
		return now == READY;
	/* the real one: our own NVML shows the grant, not the card */
	handle = reallib_open_other(path[0] == '/' ? path : NULL, "libnvidia-ml.so.1");
	init = handle ? dlsym(handle, "nvmlInitWithFlags") : NULL;
	by_uuid = handle ? dlsym(handle, "nvmlDeviceGetHandleByUUID") : NULL;
	processes = handle ? dlsym(handle, "nvmlDeviceGetComputeRunningProcesses_v3") : NULL;
	if (handle && !processes)
		processes = dlsym(handle, "nvmlDeviceGetComputeRunningProcesses_v2");
	if (!init || !by_uuid || !processes || ((int (*)(unsigned int))init)(NVML_INIT_ATTACH) != 0) {
		__atomic_store_n(&state, ABSENT, __ATOMIC_RELEASE);
		return false;
	}
	__atomic_store_n(&nvml.init, (int (*)(unsigned int))init, __ATOMIC_RELAXED);
	__atomic_store_n(&nvml.by_uuid, (int (*)(const char *, void **))by_uuid, __ATOMIC_RELAXED);
	__atomic_store_n(&nvml.processes, (int (*)(void *, unsigned int *, struct process_info *))processes,
	                 __ATOMIC_RELAXED);
	__atomic_store_n(&state, READY, __ATOMIC_RELEASE);
	return true;
}

static void *device_handle(const struct sluice_guest *guest, int device)
{
	static const char *const prefix[] = { "GPU-", "MIG-" };
	char uuid[VISIBLE_UUID_TEXT], text[VISIBLE_UUID_TEXT + 4];
	void *handle;

	visible_uuid_text(guest->policy->dev[device].gpu_uuid, uuid);
	for (int i = 0; i < 2; i++) {
		snprintf(text, sizeof(text), "%s%s", prefix[i], uuid);
		if (nvml.by_uuid(text, &handle) == 0)
			return handle;
	}
	return NULL;
}

bool overhead_used(int device, uint64_t *ret_bytes)
{
	const struct sluice_guest *guest = guest_self();
	unsigned int count = MAX_PROCESSES;
	struct process_info *infos;
	uint32_t pid;
	void *handle;
	bool known;

	if (!guest || device < 0 || !load() || !(handle = device_handle(guest, device)))
		return false;
	/* NVML lists processes by their pid on the host, which the daemon has written for us, or by our own pid. */
	pid = guest_host_pid();
	infos = calloc(MAX_PROCESSES, sizeof(*infos));
	if (!infos)
		return false;
	known = nvml.processes(handle, &count, infos) == 0;
	uint64_t by_host = 0, by_own = 0; /* not listed: no memory used yet */

	for (unsigned int i = 0; known && i < count && i < MAX_PROCESSES; i++) {
		if (infos[i].used_bytes == UINT64_MAX) /* value not available */
			continue;
		if (pid && infos[i].pid == pid)
			by_host += infos[i].used_bytes;
		else if (infos[i].pid == (uint32_t)getpid())
			by_own += infos[i].used_bytes;
	}
	*ret_bytes = by_host ? by_host : by_own;
	free(infos);
	return known;
}

#define AGAIN_TRIES 3
#define SPACED 1000
#define SPACED_MOST_NS UINT64_C(10000000000)
#define OVERHEAD_BEYOND (UINT64_C(512) << 20)

static struct {
	int contexts;     /* contexts of this process on the device */
	bool looking;     /* a thread is querying */
	bool again;       /* another thread requested a query meanwhile */
	uint64_t drift;   /* bytes charged here; only the querying thread writes it */
	uint64_t last_ns; /* time of the last query */
	uint64_t cost_ns; /* the shorter of the last two queries */
	uint64_t took_ns; /* the last query */
} followed[SLUICE_MAX_DEVICES];

static void look(int device)
{
	uint64_t before = tally_charged(device), used, after, base, part;

	if (!overhead_used(device, &used))
		return;
	after = tally_charged(device);
	base = before > after ? before : after;
	base += (uint64_t)__atomic_load_n(&followed[device].contexts, __ATOMIC_RELAXED) * FOOTPRINT_REST;
	if (used > base) {
		/* far more than the charge has another cause: the daemon compares the figures and reports it */
		part = charge_room(device, OVERHEAD_BEYOND);
		part = used - base < part ? used - base : part;
		charge_force(device, part);
		followed[device].drift += part;
	} else if (followed[device].drift) {
		part = base - used < followed[device].drift ? base - used : followed[device].drift;
		charge_return(device, part);
		followed[device].drift -= part;
	}
}

void overhead_prepare(void)
{
	memset(followed, 0, sizeof(followed));
}

void overhead_contexts(int device, int more)
{
	__atomic_fetch_add(&followed[device].contexts, more, __ATOMIC_RELAXED);
}

/* Queries take at most a thousandth of the time: milliseconds each have been seen where the driver's lock is
 * contended. */
static uint64_t spaced_ns(int device, uint64_t every_ns)
{
	uint64_t cost_ns = __atomic_load_n(&followed[device].cost_ns, __ATOMIC_RELAXED);
	uint64_t least_ns = cost_ns < SPACED_MOST_NS / SPACED ? cost_ns * SPACED : SPACED_MOST_NS;

	return every_ns > least_ns ? every_ns : least_ns;
}

/* The shorter of two queries counts, because the scheduler may have delayed one of them. */
static void took(int device, uint64_t took_ns)
{
	uint64_t before_ns = followed[device].took_ns;

	__atomic_store_n(&followed[device].cost_ns, took_ns < before_ns ? took_ns : before_ns, __ATOMIC_RELAXED);
	followed[device].took_ns = took_ns;
}

void overhead_follow(int device, uint64_t every_ns)
{
	if (device < 0 || (every_ns && !__atomic_load_n(&followed[device].contexts, __ATOMIC_RELAXED)) || away_now())
		return;
	uint64_t now_ns = clock_ns();

	if (every_ns)
		every_ns = spaced_ns(device, every_ns);
	if (now_ns - __atomic_load_n(&followed[device].last_ns, __ATOMIC_RELAXED) < every_ns)
		return;
	__atomic_store_n(&followed[device].again, true, __ATOMIC_SEQ_CST);
	for (int tries = 0; tries < AGAIN_TRIES && __atomic_load_n(&followed[device].again, __ATOMIC_SEQ_CST);
	     tries++) {
		if (__atomic_exchange_n(&followed[device].looking, true, __ATOMIC_SEQ_CST))
			return; /* the querying thread repeats its query */
		__atomic_store_n(&followed[device].again, false, __ATOMIC_SEQ_CST);
		uint64_t began_ns = clock_ns();

		look(device);
		took(device, clock_ns() - began_ns);
		__atomic_store_n(&followed[device].last_ns, now_ns, __ATOMIC_RELAXED);
		__atomic_store_n(&followed[device].looking, false, __ATOMIC_SEQ_CST);
	}
}

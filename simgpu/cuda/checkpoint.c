/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints of processes, requested by another process: cuCheckpointProcess…, drivers from 570 on.
 *
 *     RUNNING --Lock--> LOCKED --Checkpoint--> CHECKPOINTED --Restore--> LOCKED --Unlock--> RUNNING
 *
 * Where the driver's behaviour is undocumented, the strictest one is simulated: a wrong state is
 * CUDA_ERROR_ILLEGAL_STATE, a pid without CUDA CUDA_ERROR_INVALID_VALUE, another user's CUDA_ERROR_NOT_PERMITTED. The
 * bytes of device memory lie in a file of the process anyway, so a checkpoint moves only the account: from the device
 * to `spilled_bytes`, card by card under its mutex. A caller that is killed midway leaves a process that is LOCKED,
 * with some cards' accounts moved; both the next Checkpoint and the next Unlock complete the half-done step.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "simgpu/cuda/base/call.h"
#include "simgpu/cuda/work/transfer.h"
#include "simgpu/node/place.h"
#include "simgpu/node/wall.h"

#define NAP_NS 200000
#define FIRST_RELEASE 570   /* driver release */
#define FIRST_VERSION 12080 /* CUDA version */

struct target {
	struct sim_state *state;
	struct sim_client *client;
	unsigned index;
};

static void nap(void)
{
	struct timespec t = { .tv_nsec = NAP_NS };

	nanosleep(&t, NULL);
}

static bool supported(void)
{
	char text[64];

	if (!sim_knob_text("driver_version", text, sizeof(text)))
		snprintf(text, sizeof(text), SIM_DRIVER_VERSION);
	return strtoul(text, NULL, 10) >= FIRST_RELEASE && sim_knob_number("cuda_version", 13000) >= FIRST_VERSION;
}

static CUresult find(int pid, struct target *ret_target)
{
	struct sim_state *state = sim_process()->state;
	struct stat info;
	char path[32];

	if (!supported())
		return CUDA_ERROR_NOT_SUPPORTED;
	for (unsigned i = 0; pid > 0 && i < SIM_CLIENTS; i++) {
		if (sim_client_pid(state, i) != (uint32_t)pid)
			continue;
		snprintf(path, sizeof(path), "/proc/%d", pid);
		if (stat(path, &info))
			break;
		if (geteuid() != 0 && info.st_uid != geteuid())
			return CUDA_ERROR_NOT_PERMITTED;
		*ret_target = (struct target){ .state = state, .client = &state->client[i], .index = i };
		return CUDA_SUCCESS;
	}
	return CUDA_ERROR_INVALID_VALUE;
}

/* A thread of the driver in the target process does the work: a process stopped by SIGSTOP, or frozen, never
 * answers. */
static bool stopped(int pid)
{
	char path[32], text[256];

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd >= 0 ? read(fd, text, sizeof(text) - 1) : -1;

	if (fd >= 0)
		close(fd);
	text[n > 0 ? n : 0] = 0;
	const char *end = strrchr(text, ')'); /* the command name may contain any character */

	return end && (end[2] == 'T' || end[2] == 't');
}

static CUresult begin(int pid, struct target *ret_target)
{
	while (stopped(pid))
		nap();
	return find(pid, ret_target);
}

static uint32_t state_of(const struct target *t)
{
	return __atomic_load_n(&t->client->checkpoint, __ATOMIC_SEQ_CST);
}

static void set_state(const struct target *t, CUprocessState state)
{
	__atomic_store_n(&t->client->checkpoint, (uint32_t)state, __ATOMIC_SEQ_CST);
}

/* The state after a failed step: drivers do not promise to keep the process intact. */
static CUresult failed(const struct target *t, CUresult why)
{
	if (sim_knob_number("checkpoint_breaks", 0))
		set_state(t, CU_PROCESS_STATE_FAILED);
	return why;
}

/* --- locking ------------------------------------------------------------------------------------------------------ */

static bool idle_on(const struct target *t, struct sim_gpu *gpu)
{
	bool idle = true;

	sim_lock(gpu);
	const struct sim_schedule *now = sim_advance(t->state, gpu);

	for (unsigned c = 0; c < SIM_CONTEXTS && idle; c++)
		if (now->lane[c].in_use && now->lane[c].client == t->index)
			idle = now->lane[c].tail >= __atomic_load_n(&gpu->ring[c].head, __ATOMIC_ACQUIRE);
	sim_unlock(gpu);
	return idle;
}

static bool idle(const struct target *t)
{
	if (__atomic_load_n(&t->client->inside, __ATOMIC_SEQ_CST) != 0) /* G1, see current.c */
		return false;
	for (unsigned g = 0; g < t->state->gpu_count; g++)
		if (!idle_on(t, &t->state->gpu[g]))
			return false;
	return true;
}

/* G1: shut the gate first, then read the count inside. */
static bool shut(const struct target *t)
{
	uint32_t open = CU_PROCESS_STATE_RUNNING;

	return __atomic_compare_exchange_n(&t->client->checkpoint, &open, CU_PROCESS_STATE_LOCKED, false,
	                                   __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

SIM_API CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs *args)
{
	SIM_PASS(sim_enter_call(__func__));
	SIM_PASS(sim_started(sim_process()));
	struct target t;
	uint64_t began_ns = sim_now_ns();

	if (args && args->reserved0)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_PASS(begin(pid, &t));
	if (!shut(&t))
		return CUDA_ERROR_ILLEGAL_STATE;
	while (!idle(&t)) {
		if (!sim_client_alive(t.state, t.index))
			return CUDA_ERROR_INVALID_VALUE;
		if (args && args->timeoutMs && sim_now_ns() - began_ns > args->timeoutMs * UINT64_C(1000000)) {
			set_state(&t, CU_PROCESS_STATE_RUNNING);
			return CUDA_ERROR_NOT_READY;
		}
		nap();
	}
	return CUDA_SUCCESS;
}

/* --- the account of the target's memory --------------------------------------------------------------------------- */

static void spill(const struct target *t, unsigned g)
{
	struct sim_client *client = t->client;

	sim_lock(&t->state->gpu[g]);
	if (client->used_bytes[g]) {
		client->spilled_bytes[g] = client->used_bytes[g];
		client->used_bytes[g] = 0;
	}
	sim_unlock(&t->state->gpu[g]);
}

/* false: the card has no room for it, or its cgroup's limit does not allow so much. */
static bool unspill(const struct target *t, unsigned g)
{
	struct sim_client *client = t->client;
	struct sim_gpu *gpu = &t->state->gpu[g];
	uint64_t most = sim_model_at(gpu->model)->memory_bytes;

	sim_lock(gpu);
	sim_reap(t->state, gpu, true);
	uint64_t bytes = client->spilled_bytes[g];
	bool fits = bytes == 0 || (!gpu->lost && bytes <= most && sim_used_bytes(t->state, g) <= most - bytes &&
	                           bytes <= sim_wall_room(t->state, g, client->cgroup));

	if (fits && bytes) {
		client->used_bytes[g] = bytes;
		client->spilled_bytes[g] = 0;
	}
	sim_unlock(gpu);
	return fits;
}

static CUresult unspill_all(const struct target *t)
{
	for (unsigned g = 0; g < t->state->gpu_count; g++) {
		if (unspill(t, g))
			continue;
		while (g-- > 0)
			spill(t, g);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	return CUDA_SUCCESS;
}

static bool all_zero(const void *words, size_t bytes)
{
	const unsigned char *at = words;

	while (bytes > 0 && *at == 0) {
		at++;
		bytes--;
	}
	return bytes == 0;
}

static void copy_for(uint64_t bytes)
{
	uint64_t ns = bytes / SIM_LINK_BYTES_PER_NS;
	struct timespec t = { .tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u) };

	nanosleep(&t, NULL);
}

SIM_API CUresult cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs *args)
{
	SIM_PASS(sim_enter_call(__func__));
	SIM_PASS(sim_started(sim_process()));
	struct target t;
	uint64_t bytes = 0;

	if (args && !all_zero(args->reserved, sizeof(args->reserved)))
		return CUDA_ERROR_INVALID_VALUE;
	SIM_PASS(begin(pid, &t));
	if (state_of(&t) != CU_PROCESS_STATE_LOCKED)
		return CUDA_ERROR_ILLEGAL_STATE;
	for (unsigned g = 0; g < t.state->gpu_count; g++)
		bytes += t.client->used_bytes[g];
	if (__atomic_load_n(&t.client->managed, __ATOMIC_RELAXED) || t.client->exported || t.client->imported)
		return failed(&t, CUDA_ERROR_NOT_SUPPORTED);
	copy_for(bytes);
	for (unsigned g = 0; g < t.state->gpu_count; g++)
		spill(&t, g);
	set_state(&t, CU_PROCESS_STATE_CHECKPOINTED);
	return CUDA_SUCCESS;
}

SIM_API CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *args)
{
	SIM_PASS(sim_enter_call(__func__));
	SIM_PASS(sim_started(sim_process()));
	struct target t;
	uint64_t bytes = 0;

	if (args && args->gpuPairsCount)
		return CUDA_ERROR_NOT_SUPPORTED; /* restore on another GPU */
	SIM_PASS(begin(pid, &t));
	if (state_of(&t) != CU_PROCESS_STATE_CHECKPOINTED)
		return CUDA_ERROR_ILLEGAL_STATE;
	for (unsigned g = 0; g < t.state->gpu_count; g++)
		bytes += t.client->spilled_bytes[g];
	CUresult r = unspill_all(&t);

	if (r != CUDA_SUCCESS)
		return failed(&t, r);
	copy_for(bytes);
	set_state(&t, CU_PROCESS_STATE_LOCKED);
	return CUDA_SUCCESS;
}

SIM_API CUresult cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs *args)
{
	SIM_PASS(sim_enter_call(__func__));
	SIM_PASS(sim_started(sim_process()));
	struct target t;

	if (args && !all_zero(args->reserved, sizeof(args->reserved)))
		return CUDA_ERROR_INVALID_VALUE;
	SIM_PASS(begin(pid, &t));
	if (state_of(&t) != CU_PROCESS_STATE_LOCKED)
		return CUDA_ERROR_ILLEGAL_STATE;
	CUresult r = unspill_all(&t); /* moves no memory, unless an earlier caller was killed midway */

	if (r != CUDA_SUCCESS)
		return failed(&t, r);
	set_state(&t, CU_PROCESS_STATE_RUNNING);
	return CUDA_SUCCESS;
}

/* --- entry points ------------------------------------------------------------------------------------------------- */

SIM_API CUresult cuCheckpointProcessGetState(int pid, CUprocessState *state)
{
	SIM_PASS(sim_enter_call(__func__));
	SIM_PASS(sim_started(sim_process()));
	struct target t;

	if (!state)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_PASS(begin(pid, &t));
	*state = (CUprocessState)state_of(&t);
	return CUDA_SUCCESS;
}

SIM_API CUresult cuCheckpointProcessGetRestoreThreadId(int pid, int *tid)
{
	SIM_PASS(sim_enter_call(__func__));
	SIM_PASS(sim_started(sim_process()));
	struct target t;

	if (!tid)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_PASS(begin(pid, &t));
	*tid = pid; /* the simulated driver has no thread in the process, so its first one is named */
	return CUDA_SUCCESS;
}

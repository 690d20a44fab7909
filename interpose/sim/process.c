/* SPDX-License-Identifier: Apache-2.0 */
/* cuInit, the devices as this process sees them, and the queue from a launch to its end. */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "interpose/sim/arena.h"
#include "interpose/sim/object.h"

#define SPIN_BEFORE_NS UINT64_C(60000) /* wake up this long before the expected end: sleeping is not more exact */

static struct sim_process process;
static pid_t owner; /* the process that ran cuInit: a forked child inherits the memory but not the driver */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

struct sim_process *sim_process(void)
{
	static __thread pid_t checked; /* getpid is a system call: ask once per thread and fork */
	static __thread uint32_t calls;

	if (__builtin_expect(!owner, 0))
		return NULL;
	if (__builtin_expect(checked != owner || (++calls & 0x3ff) == 0, 0)) {
		if (getpid() != owner)
			return NULL;
		checked = owner;
	}
	return &process;
}

static void forked(void)
{
	if (owner)
		owner = -1; /* started before the fork: never again in this process */
}

static void uuid_text(const struct sim_gpu *gpu, char *text, size_t bytes)
{
	const uint8_t *u = gpu->uuid;

	snprintf(text, bytes, "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
	         gpu->card < 0 ? "GPU" : "MIG", u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10],
	         u[11], u[12], u[13], u[14], u[15]);
}

static void add_device(unsigned gpu)
{
	struct sim_device *d = &process.device[process.device_count++];

	*d = (struct sim_device){ .gpu = &process.state->gpu[gpu], .gpu_index = gpu };
	d->generation = d->gpu->generation;
	d->model = sim_model_at(d->gpu->model);
}

/* A card in MIG mode is used by way of an instance, the first unless one is named; -1 when it has none. */
static int usable(unsigned gpu)
{
	const struct sim_gpu *instance = sim_instance(process.state, &process.state->gpu[gpu], 0);

	if (!process.state->gpu[gpu].mig_mode)
		return (int)gpu;
	return instance ? (int)sim_gpu_index(process.state, instance) : -1;
}

/* CUDA_VISIBLE_DEVICES: indices, or prefixes of GPU- and MIG- UUIDs; the first entry that means nothing ends the list. */
static void list_devices(void)
{
	const char *list = getenv("CUDA_VISIBLE_DEVICES");
	unsigned card[SIM_GPUS], cards = sim_cards(process.state, card);

	process.device_count = 0;
	if (!list) {
		for (unsigned c = 0; c < cards; c++)
			if (usable(card[c]) >= 0)
				add_device((unsigned)usable(card[c]));
		return;
	}
	while (*list && process.device_count < SIM_DEVICES) {
		const char *comma = strchrnul(list, ',');
		size_t length = (size_t)(comma - list);
		int found = -1;

		for (unsigned c = 0; c < cards && found < 0; c++) { /* an instance has no number */
			char number[12];

			snprintf(number, sizeof(number), "%u", c);
			if (length == strlen(number) && memcmp(list, number, length) == 0)
				found = usable(card[c]);
		}
		for (unsigned g = 0; g < process.state->gpu_count && found < 0; g++) {
			const struct sim_gpu *gpu = &process.state->gpu[g];
			char text[48];

			if (!gpu->live || !sim_gpu_there(process.state, gpu))
				continue;
			uuid_text(gpu, text, sizeof(text));
			if (length > 4 && length <= strlen(text) && memcmp(list, text, length) == 0)
				found = usable(g);
		}
		if (found < 0)
			return;
		for (int d = 0; d < process.device_count; d++) /* named twice: the driver shows nothing at all */
			if (process.device[d].gpu_index == (unsigned)found) {
				process.device_count = 0;
				return;
			}
		add_device((unsigned)found);
		list = *comma ? comma + 1 : comma;
	}
}

int sim_process_start(void)
{
	int result = CUDA_SUCCESS;

	pthread_mutex_lock(&mutex);
	if (owner == -1) {
		result = CUDA_ERROR_NOT_INITIALIZED;
	} else if (!owner) {
		process.state = sim_state();
		process.client_index = process.state ? sim_client_attach(process.state) : -1;
		if (process.client_index < 0) {
			result = process.state ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_ERROR_NO_DEVICE;
		} else {
			process.client = &process.state->client[process.client_index];
			list_devices();
			if (process.device_count == 0)
				result = CUDA_ERROR_NO_DEVICE;
			pthread_atfork(NULL, NULL, forked);
			if (result == CUDA_SUCCESS)
				__atomic_store_n(&owner, getpid(), __ATOMIC_RELEASE);
		}
	}
	pthread_mutex_unlock(&mutex);
	return result;
}

struct sim_device *sim_device_get(CUdevice device)
{
	return device >= 0 && device < process.device_count ? &process.device[device] : NULL;
}

const struct sim_model *sim_model_of(const struct CUctx_st *context)
{
	return sim_model_at(context->gpu->model);
}

/* --- the queue ------------------------------------------------------------------------------------------------- */

static void look(struct CUctx_st *context)
{
	sim_lock(context->gpu);
	sim_advance(process.state, context->gpu);
	sim_unlock(context->gpu);
}

static uint64_t tail_of(const struct CUctx_st *context)
{
	return __atomic_load_n(&sim_published(context->gpu)->lane[context->index].tail, __ATOMIC_RELAXED);
}

uint64_t sim_submit(struct CUctx_st *context, enum sim_op_kind kind, uint64_t duration_ns, uint32_t cell)
{
	struct sim_ring *ring = &context->gpu->ring[context->index];
	int backoff = 0;

	for (;;) {
		while (__atomic_exchange_n(&context->submit_lock, 1, __ATOMIC_ACQUIRE))
			sched_yield();
		uint64_t head = ring->head;

		if (head - tail_of(context) < SIM_RING) {
			struct sim_op *op = &ring->op[head % SIM_RING];

			op->kind = kind;
			op->duration_ns = duration_ns;
			op->cell = cell;
			op->submit_ns = sim_now_ns();
			/* Pairs with the scheduler's acquire load of head. */
			__atomic_store_n(&ring->head, head + 1, __ATOMIC_RELEASE);
			__atomic_store_n(&context->submit_lock, 0, __ATOMIC_RELEASE);
			return head + 1;
		}
		__atomic_store_n(&context->submit_lock, 0, __ATOMIC_RELEASE);
		look(context);
		if (backoff++ > 2 && head - tail_of(context) >= SIM_RING) {
			struct timespec nap = { .tv_nsec = 20000 };

			nanosleep(&nap, NULL);
		}
	}
}

bool sim_done(struct CUctx_st *context, uint64_t sequence)
{
	if (tail_of(context) >= sequence)
		return true;
	look(context);
	return tail_of(context) >= sequence;
}

CUresult sim_wait(struct CUctx_st *context, uint64_t sequence)
{
	struct sim_world world;

	while (tail_of(context) < sequence) {
		if (context->gpu->lost)
			return CUDA_ERROR_DEVICE_UNAVAILABLE;
		sim_lock(context->gpu);
		const struct sim_schedule *now = sim_advance(process.state, context->gpu);

		sim_world(process.state, context->gpu, &world);
		uint64_t expected_ns = timeline_expect(now, &world, context->index, sequence);

		sim_unlock(context->gpu);
		uint64_t now_ns = sim_now_ns();

		if (expected_ns == SIM_FOREVER)
			expected_ns = now_ns + UINT64_C(10000000);
		if (expected_ns > now_ns + SPIN_BEFORE_NS) {
			uint64_t until_ns = expected_ns - SPIN_BEFORE_NS;
			struct timespec until = { .tv_sec = (time_t)(until_ns / 1000000000u),
				                  .tv_nsec = (long)(until_ns % 1000000000u) };

			clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
		} else {
			while (sim_now_ns() < expected_ns)
				sched_yield();
		}
	}
	return CUDA_SUCCESS;
}

CUresult sim_synchronise(struct CUctx_st *context, uint64_t sequence)
{
	CUresult r = sim_wait(context, sequence);

	if (r == CUDA_SUCCESS)
		sim_pools_trim(context);
	return r;
}

uint64_t sim_copy_ns(const struct CUctx_st *context, uint64_t bytes)
{
	return bytes * 1000 / sim_model_of(context)->bandwidth_bytes_per_us;
}

uint64_t sim_kernel_ns(const struct CUfunc_st *function, const struct sim_model *model, uint64_t blocks,
                       uint64_t threads, void **params)
{
	if (function->kind == SIM_KERNEL_FOREVER)
		return SIM_FOREVER;
	if (function->kind == SIM_KERNEL_BUSY_NS && params && params[0]) {
		uint64_t ns;

		memcpy(&ns, params[0], sizeof(ns));
		return ns;
	}
	/* Two microseconds, and ten for every full wave of blocks over the SMs (2,048 threads each). */
	uint64_t resident = (uint64_t)model->sm_count * (model->threads_per_sm / (threads ? threads : 1));
	uint64_t waves = resident ? (blocks + resident - 1) / resident : blocks;

	return 2000 + waves * 10000;
}

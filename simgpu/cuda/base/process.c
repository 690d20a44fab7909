/* SPDX-License-Identifier: Apache-2.0 */
/* The state that cuInit makes: this process as a client of the node, and its view of the devices. */
#include "simgpu/cuda/base/process.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "simgpu/node/node.h"

static struct sim_process process;
static pid_t owner; /* the process that ran cuInit: a forked child inherits the memory but not the driver */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

struct sim_process *sim_process(void)
{
	static __thread pid_t checked; /* getpid is a system call: call it once per thread and fork */
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
		owner = -1; /* initialised before the fork: the driver never works again in this process */
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

/* A card in MIG mode is used through an instance, the first unless one is named; -1 when it has none. */
static int usable(unsigned gpu)
{
	const struct sim_gpu *instance = sim_instance(process.state, &process.state->gpu[gpu], 0);

	if (!process.state->gpu[gpu].mig_mode)
		return (int)gpu;
	return instance ? (int)sim_gpu_index(process.state, instance) : -1;
}

/* CUDA_VISIBLE_DEVICES: indices, or prefixes of GPU- and MIG- UUIDs; the first invalid entry ends the list. */
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

		for (unsigned c = 0; c < cards && found < 0; c++) { /* an instance has no index */
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
		for (int d = 0; d < process.device_count; d++) /* named twice: the driver then shows no device */
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

/* SPDX-License-Identifier: Apache-2.0 */
/* The shared file of a simulated node: joining it, and recovering from clients that die in it. */
#include "simgpu/node/state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#include "simgpu/node/place.h"

#define REAP_EVERY_NS UINT64_C(1000000)

static int lock_fd = -1; /* kept open for life: closing any descriptor of this file would drop our lock */
static int self = -1;
static uint32_t self_pid;
static pthread_mutex_t attach_mutex = PTHREAD_MUTEX_INITIALIZER;

void sim_mutex_make(pthread_mutex_t *mutex)
{
	pthread_mutexattr_t attributes;

	pthread_mutexattr_init(&attributes);
	pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
	pthread_mutex_init(mutex, &attributes);
	pthread_mutexattr_destroy(&attributes);
}

struct sim_gpu *sim_gpu_add(struct sim_state *state, const struct sim_model *model)
{
	unsigned index = state->gpu_count;

	if (index == SIM_GPUS)
		return NULL;
	struct sim_gpu *gpu = &state->gpu[index];

	sim_mutex_make(&gpu->mutex);
	gpu->model = sim_model_index(model);
	gpu->schedule[0].now_ns = sim_now_ns();
	/* Set before the count, so that every reader of the count finds it; an instance is not live yet. */
	__atomic_store_n(&state->gpu_count, index + 1, __ATOMIC_RELEASE);
	return gpu;
}

bool sim_clients_open(void)
{
	char path[256];

	snprintf(path, sizeof(path), "%s/locks", sim_directory());
	if (lock_fd < 0)
		lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
	return lock_fd >= 0;
}

/* True if that client's byte is locked; *ret_pid is the process that locks it. The kernel translates the holder's
 * pid for the caller. */
static bool byte_locked(unsigned client, uint32_t *ret_pid)
{
	struct flock range = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = client, .l_len = 1 };

	if (fcntl(lock_fd, F_GETLK, &range) != 0 || range.l_type == F_UNLCK)
		return false;
	*ret_pid = range.l_pid > 0 ? (uint32_t)range.l_pid : 0;
	return true;
}

/* The kernel's random bytes for this run of this program: exec changes them, fork keeps them. */
static uint64_t program(void)
{
	uint64_t bytes = 0;
	const void *random = (const void *)getauxval(AT_RANDOM);

	if (random)
		memcpy(&bytes, random, sizeof(bytes));
	return bytes;
}

/* A record lock never conflicts with its own process, and the driver and the management library may both be in it, each
 * with its own copy of this file's variables. */
static bool is_this_process(const struct sim_client *client)
{
	return client->pid == (uint32_t)getpid() && client->program == program();
}

bool sim_client_alive(const struct sim_state *state, unsigned client)
{
	uint32_t pid;

	if (!__atomic_load_n(&state->client[client].in_use, __ATOMIC_ACQUIRE))
		return false;
	return is_this_process(&state->client[client]) || byte_locked(client, &pid);
}

uint32_t sim_client_pid(const struct sim_state *state, unsigned client)
{
	uint32_t pid = 0;

	if (!__atomic_load_n(&state->client[client].in_use, __ATOMIC_ACQUIRE))
		return 0;
	if (is_this_process(&state->client[client]))
		return (uint32_t)getpid();
	return byte_locked(client, &pid) ? pid : 0;
}

int sim_client_self(void)
{
	return self_pid == (uint32_t)getpid() ? self : -1;
}

int sim_client_attach(struct sim_state *state)
{
	int found = -1;

	pthread_mutex_lock(&attach_mutex);
	if (sim_client_self() >= 0) {
		pthread_mutex_unlock(&attach_mutex);
		return self;
	}
	for (unsigned i = 0; i < SIM_CLIENTS && found < 0; i++) {
		struct flock range = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = i, .l_len = 1 };
		struct sim_client *client = &state->client[i];

		if (fcntl(lock_fd, F_SETLK, &range) != 0)
			continue;
		if (client->in_use) { /* the record is ours now; remains of its dead owner are removed first */
			self = -1;
			range.l_type = F_UNLCK;
			fcntl(lock_fd, F_SETLK, &range);
			for (unsigned g = 0; g < state->gpu_count; g++) {
				sim_lock(&state->gpu[g]);
				sim_reap(state, &state->gpu[g], true);
				sim_unlock(&state->gpu[g]);
			}
			range.l_type = F_WRLCK;
			if (client->in_use || fcntl(lock_fd, F_SETLK, &range) != 0)
				continue;
		}
		memset(client->cell_ns, 0, sizeof(client->cell_ns));
		memset(client->used_bytes, 0, sizeof(client->used_bytes));
		memset(client->managed_bytes, 0, sizeof(client->managed_bytes));
		memset(client->spilled_bytes, 0, sizeof(client->spilled_bytes));
		client->checkpoint = client->inside = client->exported = client->imported = client->managed = 0;
		sim_cgroups(client->cgroup);
		client->pid = (uint32_t)getpid();
		client->program = program();
		client->memory_fd = -1;
		__atomic_store_n(&client->in_use, 1, __ATOMIC_RELEASE);
		found = (int)i;
	}
	self = found;
	self_pid = (uint32_t)getpid();
	pthread_mutex_unlock(&attach_mutex);
	return found;
}

void sim_mutex_lock(pthread_mutex_t *mutex)
{
	if (pthread_mutex_lock(mutex) == EOWNERDEAD)
		pthread_mutex_consistent(mutex);
}

void sim_lock(struct sim_gpu *gpu)
{
	sim_mutex_lock(&gpu->mutex); /* after a death: the published schedule is complete, see sim_edit_end() */
}

void sim_unlock(struct sim_gpu *gpu)
{
	pthread_mutex_unlock(&gpu->mutex);
}

const struct sim_schedule *sim_published(const struct sim_gpu *gpu)
{
	return &gpu->schedule[__atomic_load_n(&gpu->published, __ATOMIC_ACQUIRE) & 1];
}

struct sim_schedule *sim_edit_begin(struct sim_gpu *gpu)
{
	struct sim_schedule *draft = &gpu->schedule[(gpu->published & 1) ^ 1];

	*draft = gpu->schedule[gpu->published & 1];
	return draft;
}

void sim_edit_end(struct sim_gpu *gpu)
{
	__atomic_store_n(&gpu->published, gpu->published ^ 1, __ATOMIC_RELEASE);
}

unsigned sim_gpu_index(const struct sim_state *state, const struct sim_gpu *gpu)
{
	return (unsigned)(gpu - state->gpu);
}

unsigned sim_card_index(const struct sim_state *state, const struct sim_gpu *gpu)
{
	return gpu->card >= 0 ? (unsigned)gpu->card : sim_gpu_index(state, gpu);
}

static bool card_there(unsigned card)
{
	const char *nodes = getenv("SLUICE_SIM_NODES");
	char path[256];

	if (!nodes || !nodes[0])
		return true;
	snprintf(path, sizeof(path), "%s/nvidia%u", nodes, card);
	int fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK); /* the device cgroup is checked only at open */

	if (fd >= 0)
		close(fd);
	return fd >= 0;
}

unsigned sim_cards(const struct sim_state *state, unsigned ret_card[SIM_GPUS])
{
	unsigned count = 0;

	for (unsigned card = 0; card < state->card_count; card++)
		if (card_there(card))
			ret_card[count++] = card;
	return count;
}

bool sim_gpu_there(const struct sim_state *state, const struct sim_gpu *gpu)
{
	return card_there(sim_card_index(state, gpu));
}

struct sim_gpu *sim_instance(struct sim_state *state, const struct sim_gpu *card, unsigned n)
{
	unsigned index = sim_gpu_index(state, card);

	for (unsigned i = state->card_count; i < state->gpu_count; i++)
		if (state->gpu[i].live && state->gpu[i].compute && state->gpu[i].card == (int32_t)index && n-- == 0)
			return &state->gpu[i];
	return NULL;
}

static void stamp(void *context, uint32_t client, uint32_t cell, uint64_t device_ns)
{
	struct sim_state *state = context;

	if (client < SIM_CLIENTS && cell < SIM_CELLS)
		__atomic_store_n(&state->client[client].cell_ns[cell], device_ns, __ATOMIC_RELEASE);
}

void sim_world(struct sim_state *state, struct sim_gpu *gpu, struct sim_world *ret_world)
{
	*ret_world = (struct sim_world){ .ring = gpu->ring,
		                         .slice_ns = state->slice_ns,
		                         .switch_ns = state->switch_ns,
		                         .stamp = stamp,
		                         .context = state };
}

const struct sim_schedule *sim_advance(struct sim_state *state, struct sim_gpu *gpu)
{
	struct sim_world world;

	sim_reap(state, gpu, false);
	struct sim_schedule *draft = sim_edit_begin(gpu);

	sim_world(state, gpu, &world);
	if (!gpu->lost)
		timeline_advance(draft, &world, sim_now_ns());
	sim_edit_end(gpu);
	return sim_published(gpu);
}

void sim_reap(struct sim_state *state, struct sim_gpu *gpu, bool at_once)
{
	uint64_t now_ns = sim_now_ns();
	unsigned index = sim_gpu_index(state, gpu);

	if (!at_once && now_ns - gpu->reaped_ns < REAP_EVERY_NS)
		return;
	gpu->reaped_ns = now_ns;
	uint32_t was_lost = gpu->lost;

	gpu->lost = sim_knob_lists("gpu_lost", sim_card_index(state, gpu));
	if (was_lost && !gpu->lost)
		gpu->mig_mode = gpu->mig_pending; /* as after a reset */
	for (unsigned i = 0; i < SIM_CLIENTS; i++) {
		struct sim_client *client = &state->client[i];

		if (!__atomic_load_n(&client->in_use, __ATOMIC_ACQUIRE) || sim_client_alive(state, i))
			continue;
		struct sim_schedule *draft = sim_edit_begin(gpu);

		for (unsigned c = 0; c < SIM_CONTEXTS; c++)
			if (draft->lane[c].in_use && draft->lane[c].client == i)
				timeline_close(draft, c);
		sim_edit_end(gpu);
		client->used_bytes[index] = 0;
		client->managed_bytes[index] = 0;
		client->spilled_bytes[index] = 0;
		/* The record is free once no GPU holds any state of it. */
		bool empty = true;

		for (unsigned g = 0; g < state->gpu_count && empty; g++) {
			const struct sim_schedule *other = sim_published(&state->gpu[g]);

			empty = client->used_bytes[g] == 0;
			for (unsigned c = 0; c < SIM_CONTEXTS && empty; c++)
				empty = !(other->lane[c].in_use && other->lane[c].client == i);
		}
		if (empty)
			__atomic_store_n(&client->in_use, 0, __ATOMIC_RELEASE);
	}
}

uint64_t sim_used_bytes(const struct sim_state *state, unsigned gpu)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < SIM_CLIENTS; i++)
		if (state->client[i].in_use)
			sum += state->client[i].used_bytes[gpu];
	return sum;
}

bool sim_in_use(const struct sim_state *state, const struct sim_gpu *gpu)
{
	const struct sim_schedule *now = sim_published(gpu);

	for (unsigned c = 0; c < SIM_CONTEXTS; c++)
		if (now->lane[c].in_use)
			return true;
	return sim_used_bytes(state, sim_gpu_index(state, gpu)) > 0;
}

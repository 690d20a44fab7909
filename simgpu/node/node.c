/* SPDX-License-Identifier: Apache-2.0 */
/* The node on which this process runs: created if new, mapped at the first use. */
#include "simgpu/node/node.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "simgpu/node/place.h"
#include "simgpu/node/mig.h"

#define DEFAULT_GPUS "h100-80gb"
#define DEFAULT_SLICE_NS 2000000
#define DEFAULT_SWITCH_NS                                                                                              \
	UINT64_C(200000) /* two capped jobs on an H200 lost as much as 180 to 250 us a switch would take */

static struct sim_state *mapped;
static pthread_mutex_t mapping = PTHREAD_MUTEX_INITIALIZER;

/* FNV-1a of SLUICE_SIM_SEED, by which the cards of two nodes of a cluster have different UUIDs; 0 without one. */
static uint64_t seed_of_node(void)
{
	const char *seed = getenv("SLUICE_SIM_SEED");
	uint64_t hash = UINT64_C(0xcbf29ce484222325);

	if (!seed || !seed[0])
		return 0;
	for (; *seed; seed++)
		hash = (hash ^ (uint8_t)*seed) * UINT64_C(0x100000001b3);
	return hash;
}

static void card_make(struct sim_state *state, const struct sim_model *model)
{
	struct sim_gpu *gpu = sim_gpu_add(state, model);
	unsigned index = sim_gpu_index(state, gpu);

	gpu->numa_node = (int32_t)(index & 1);
	gpu->pci_bus = 0x10 + index * 0x10;
	gpu->card = -1;
	gpu->live = 1;
	/* Deterministic, and valid as a version 4 UUID. */
	uint64_t mix = (index + 1) * UINT64_C(0x9e3779b97f4a7c15) ^ ((uint64_t)gpu->model << 48) ^ seed_of_node();

	for (unsigned i = 0; i < 16; i++) {
		mix = mix * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
		gpu->uuid[i] = (uint8_t)(mix >> 56);
	}
	gpu->uuid[6] = (uint8_t)(0x40 | (gpu->uuid[6] & 0x0f));
	gpu->uuid[8] = (uint8_t)(0x80 | (gpu->uuid[8] & 0x3f));
}

/* "2xh100-80gb,a100-40gb:3g.20gb+2g.10gb": 0, or -1 with a line on stderr that names the mistake. */
static int gpus_make(struct sim_state *state, const char *list)
{
	struct {
		const char *from, *to;
	} cut[SIM_GPUS] = { { NULL, NULL } };

	while (*list) {
		const char *comma = strchrnul(list, ',');
		char *rest;
		unsigned long count = strtoul(list, &rest, 10);

		if (rest != list && *rest == 'x')
			list = rest + 1;
		else
			count = 1;
		const char *colon = memchr(list, ':', (size_t)(comma - list));
		const char *end = colon ? colon : comma;
		const struct sim_model *model = sim_model_find(list, (unsigned)(end - list));

		if (!model || count == 0 || state->gpu_count + count > SIM_GPUS) {
			fprintf(stderr,
			        "simulated GPU: SLUICE_SIM_GPUS: '%.*s' is an unknown model, or exceeds %d GPUs\n",
			        (int)(end - list), list, SIM_GPUS);
			return -1;
		}
		for (; count > 0; count--) {
			if (colon) {
				cut[state->gpu_count].from = colon + 1;
				cut[state->gpu_count].to = comma;
			}
			card_make(state, model);
		}
		list = *comma ? comma + 1 : comma;
	}
	state->card_count = state->gpu_count;
	for (unsigned card = 0; card < state->card_count; card++) {
		if (!cut[card].from || mig_cut(state, card, cut[card].from, cut[card].to) == 0)
			continue;
		fprintf(stderr,
		        "simulated GPU: SLUICE_SIM_GPUS: '%.*s' is not a PROFILE+PROFILE… that GPU %u has room for\n",
		        (int)(cut[card].to - cut[card].from), cut[card].from, card);
		return -1;
	}
	return state->gpu_count ? 0 : -1;
}

static struct sim_state *state_map(int fd)
{
	struct stat info;

	if (fstat(fd, &info) != 0 ||
	    ((size_t)info.st_size < sizeof(struct sim_state) && ftruncate(fd, (off_t)sizeof(struct sim_state)) != 0))
		return MAP_FAILED;
	return mmap(NULL, sizeof(struct sim_state), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
}

static struct sim_state *state_open(void)
{
	char path[256];

	if (mkdir(sim_directory(), 0777) && errno != EEXIST)
		return NULL;
	if (!sim_clients_open())
		return NULL;
	snprintf(path, sizeof(path), "%s/state", sim_directory());
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);

	if (fd < 0)
		return NULL;
	flock(fd, LOCK_EX); /* on the state file, so it never conflicts with the record locks */
	struct sim_state *state = state_map(fd);

	if (state != MAP_FAILED && state->magic != SIM_STATE_MAGIC) {
		/* New, incomplete because its creator was killed, or of another version: none of it may stay. */
		munmap(state, sizeof(*state));
		state = ftruncate(fd, 0) == 0 ? state_map(fd) : MAP_FAILED;
	}
	if (state != MAP_FAILED && state->magic != SIM_STATE_MAGIC) {
		const char *list = getenv("SLUICE_SIM_GPUS");

		sim_mutex_make(&state->geometry);
		state->slice_ns = sim_knob_number("slice_us", DEFAULT_SLICE_NS / 1000) * 1000;
		state->switch_ns = sim_knob_number("switch_us", DEFAULT_SWITCH_NS / 1000) * 1000;
		if (gpus_make(state, list && list[0] ? list : DEFAULT_GPUS) == 0) {
			__atomic_store_n(&state->magic, SIM_STATE_MAGIC, __ATOMIC_RELEASE);
		} else {
			munmap(state, sizeof(*state));
			state = MAP_FAILED;
		}
	}
	flock(fd, LOCK_UN);
	close(fd);
	return state == MAP_FAILED ? NULL : state;
}

struct sim_state *sim_state(void)
{
	if (__atomic_load_n(&mapped, __ATOMIC_ACQUIRE))
		return mapped;
	pthread_mutex_lock(&mapping);
	if (!mapped)
		__atomic_store_n(&mapped, state_open(), __ATOMIC_RELEASE);
	pthread_mutex_unlock(&mapping);
	return mapped;
}

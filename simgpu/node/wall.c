/* SPDX-License-Identifier: Apache-2.0 */
/* The book of memory limits by cgroup. */
#include "simgpu/node/wall.h"

#include <stdio.h>
#include <string.h>

#include "simgpu/kernel/cgroup.h"
#include "simgpu/node/place.h"

enum sim_wall_book sim_wall_book(void)
{
	char text[16];

	if (!sim_knob_text("memory_limits", text, sizeof(text)))
		return SIM_WALL_OFF;
	return strcmp(text, "dmem") == 0 ? SIM_WALL_KERNEL : strcmp(text, "misc") == 0 ? SIM_WALL_FLAT : SIM_WALL_OFF;
}

static const struct sim_wall *find(const struct sim_state *state, unsigned gpu, uint64_t cgroup)
{
	for (unsigned i = 0; cgroup && i < SIM_WALLS; i++)
		if (__atomic_load_n(&state->wall[i].cgroup, __ATOMIC_ACQUIRE) == cgroup && state->wall[i].gpu == gpu)
			return &state->wall[i];
	return NULL;
}

uint64_t sim_wall_used(const struct sim_state *state, unsigned gpu, uint64_t cgroup)
{
	uint64_t sum = 0;

	for (unsigned i = 0; cgroup && i < SIM_CLIENTS; i++) {
		const struct sim_client *client = &state->client[i];
		bool within = false;

		if (!client->in_use)
			continue;
		for (unsigned c = 0; c < SIM_CGROUPS && !within; c++)
			within = client->cgroup[c] == cgroup;
		if (within)
			sum += client->used_bytes[gpu] - client->managed_bytes[gpu];
	}
	return sum;
}

uint64_t sim_wall_room(const struct sim_state *state, unsigned gpu, const uint64_t cgroup[SIM_CGROUPS])
{
	uint64_t room = SIM_NO_LIMIT;

	for (unsigned c = 0; c < SIM_CGROUPS; c++) {
		const struct sim_wall *wall = find(state, gpu, cgroup[c]);
		uint64_t used = wall ? sim_wall_used(state, gpu, cgroup[c]) : 0;
		uint64_t left = !wall || wall->hard_bytes == SIM_NO_LIMIT ? SIM_NO_LIMIT
		                : used < wall->hard_bytes                 ? wall->hard_bytes - used
		                                                          : 0;

		room = left < room ? left : room;
		if (wall && wall->flat)
			break;
	}
	return room;
}

uint64_t sim_wall_total(const struct sim_state *state, unsigned gpu, const uint64_t cgroup[SIM_CGROUPS])
{
	uint64_t total = SIM_NO_LIMIT;

	for (unsigned c = 0; c < SIM_CGROUPS; c++) {
		const struct sim_wall *wall = find(state, gpu, cgroup[c]);

		if (wall && wall->hard_bytes < total)
			total = wall->hard_bytes;
		if (wall && wall->flat)
			break;
	}
	return total;
}

struct sim_wall sim_wall_get(const struct sim_state *state, unsigned gpu, uint64_t cgroup)
{
	const struct sim_wall *wall = find(state, gpu, cgroup);

	return wall ? *wall : (struct sim_wall){ .cgroup = cgroup, .gpu = gpu, .hard_bytes = SIM_NO_LIMIT };
}

/* A row without a limit is free again. */
static bool write(struct sim_state *state, unsigned gpu, struct sim_wall value)
{
	struct sim_wall *wall = (struct sim_wall *)find(state, gpu, value.cgroup);
	bool nothing = value.soft_bytes == 0 && value.hard_bytes == SIM_NO_LIMIT;

	if (!wall && nothing)
		return true;
	for (unsigned i = 0; !wall && i < SIM_WALLS; i++)
		if (state->wall[i].cgroup == 0)
			wall = &state->wall[i];
	if (!wall)
		return false;
	wall->gpu = gpu;
	wall->flat = value.flat;
	wall->soft_bytes = value.soft_bytes;
	wall->hard_bytes = value.hard_bytes;
	__atomic_store_n(&wall->cgroup, nothing ? 0 : value.cgroup, __ATOMIC_RELEASE);
	return true;
}

bool sim_wall_set(struct sim_state *state, unsigned gpu, const char *directory, uint64_t soft_bytes,
                  uint64_t hard_bytes)
{
	bool flat = sim_wall_book() == SIM_WALL_FLAT;
	struct sim_wall wall = sim_wall_get(state, gpu, sim_cgroup_at(directory));
	uint64_t before = wall.soft_bytes;
	char around[4096];

	wall.soft_bytes = soft_bytes;
	wall.hard_bytes = hard_bytes;
	wall.flat = flat;
	if (!write(state, gpu, wall))
		return false;
	snprintf(around, sizeof(around), "%s", directory);
	for (char *slash = strrchr(around, '/'); !flat && slash && slash != around; slash = strrchr(around, '/')) {
		*slash = 0;
		struct sim_wall above = sim_wall_get(state, gpu, sim_cgroup_at(around));
		char parent[sizeof(around) + 3];

		snprintf(parent, sizeof(parent), "%s/..", around);
		if (!above.cgroup || !sim_cgroup_at(parent))
			break; /* the root cgroup has no such file */
		above.soft_bytes = above.soft_bytes + soft_bytes > before ? above.soft_bytes + soft_bytes - before : 0;
		if (!write(state, gpu, above))
			return false;
	}
	return true;
}

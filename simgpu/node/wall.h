/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver's memory limits by cgroup, as from release 615 on: a hard one, at which allocations fail, and a soft one,
 * which is what is guaranteed.
 *
 * Two books, as there. The kernel's (dmem) has a hierarchy: every hard limit around a process counts, and a soft one is
 * also added to all that is around its cgroup, which is taken back when it is lowered, and not when the cgroup is simply
 * removed. The driver's own (misc) is flat: the nearest cgroup that has a limit. Managed memory is in neither.
 */
#ifndef SIM_WALL_H
#define SIM_WALL_H

#include <stdbool.h>
#include <stdint.h>

#include "simgpu/node/state.h"

#define SIM_NO_LIMIT UINT64_MAX

enum sim_wall_book { SIM_WALL_OFF, SIM_WALL_KERNEL, SIM_WALL_FLAT };

/* What the knob `memory_limits` says. */
enum sim_wall_book sim_wall_book(void);
/* How many bytes more those in these cgroups may have on the GPU; SIM_NO_LIMIT. With the GPU's mutex held. */
uint64_t sim_wall_room(const struct sim_state *state, unsigned gpu, const uint64_t cgroup[SIM_CGROUPS]);
/* The lowest hard limit around them; SIM_NO_LIMIT. With the GPU's mutex held. */
uint64_t sim_wall_total(const struct sim_state *state, unsigned gpu, const uint64_t cgroup[SIM_CGROUPS]);
/* What the cgroup and those in it have. With the GPU's mutex held. */
uint64_t sim_wall_used(const struct sim_state *state, unsigned gpu, uint64_t cgroup);
/* The limits of that one cgroup; a soft one of 0 and no hard one where it has none. With the GPU's mutex held. */
struct sim_wall sim_wall_get(const struct sim_state *state, unsigned gpu, uint64_t cgroup);
/* false: the book is full. `directory` is the cgroup's. With the geometry's and the GPU's mutex held. */
bool sim_wall_set(struct sim_state *state, unsigned gpu, const char *directory, uint64_t soft_bytes,
                  uint64_t hard_bytes);

#endif

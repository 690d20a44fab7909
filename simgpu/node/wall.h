/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver's memory limits by cgroup, as from release 615 on: a hard one, at which allocations fail, and a soft one,
 * which is guaranteed.
 *
 * There are two books, as in the driver. The kernel's (dmem) has a hierarchy: every hard limit around a process
 * applies, and a soft limit is also added to all enclosing cgroups; lowering it subtracts it there, removing the cgroup
 * does not. The driver's own (misc) is flat: the nearest cgroup that has a limit applies. Neither counts managed
 * memory.
 */
#ifndef SIM_WALL_H
#define SIM_WALL_H

#include <stdbool.h>
#include <stdint.h>

#include "simgpu/node/state.h"

#define SIM_NO_LIMIT UINT64_MAX

enum sim_wall_book { SIM_WALL_OFF, SIM_WALL_KERNEL, SIM_WALL_FLAT };

/* The mode set by the knob `memory_limits`. */
enum sim_wall_book sim_wall_book(void);
/* Bytes that these cgroups may still allocate on the GPU; SIM_NO_LIMIT. With the GPU's mutex held. */
uint64_t sim_wall_room(const struct sim_state *state, unsigned gpu, const uint64_t cgroup[SIM_CGROUPS]);
/* The lowest hard limit around them; SIM_NO_LIMIT. With the GPU's mutex held. */
uint64_t sim_wall_total(const struct sim_state *state, unsigned gpu, const uint64_t cgroup[SIM_CGROUPS]);
/* Bytes used by the cgroup and those below it. With the GPU's mutex held. */
uint64_t sim_wall_used(const struct sim_state *state, unsigned gpu, uint64_t cgroup);
/* The limits of that cgroup alone; where it has none, a soft one of 0 and no hard one. With the GPU's mutex held. */
struct sim_wall sim_wall_get(const struct sim_state *state, unsigned gpu, uint64_t cgroup);
/* false: the book is full. `directory` is the cgroup's. With the geometry's and the GPU's mutex held. */
bool sim_wall_set(struct sim_state *state, unsigned gpu, const char *directory, uint64_t soft_bytes,
                  uint64_t hard_bytes);

#endif

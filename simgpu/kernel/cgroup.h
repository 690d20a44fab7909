/* SPDX-License-Identifier: Apache-2.0 */
/* The cgroups of version 2 that contain this process, by the numbers that the kernel gives them. */
#ifndef SIM_CGROUP_H
#define SIM_CGROUP_H

#include <stddef.h>
#include <stdint.h>

#define SIM_CGROUPS 8 /* levels that are read: a container is three or four deep */

/* This process's own cgroup first, then the enclosing ones, as far as they are visible; 0 fills the rest. A cgroup
 * namespace hides its outside: then its root is the last one. */
void sim_cgroups(uint64_t ret_cgroup[SIM_CGROUPS]);
/* The id of the cgroup at this directory; 0: not a cgroup (errno has the reason). */
uint64_t sim_cgroup_at(const char *directory);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Which cgroups of version 2 there are around this process, by the numbers the kernel gives them. */
#ifndef SIM_CGROUP_H
#define SIM_CGROUP_H

#include <stddef.h>
#include <stdint.h>

#define SIM_CGROUPS 8 /* that are looked at: a container is three or four deep */

/* This process's own first, then those it is in, as far as it can see them; 0 fills the rest. A cgroup namespace hides
 * what is outside of it: its root is then the last one. */
void sim_cgroups(uint64_t ret_cgroup[SIM_CGROUPS]);
/* The number of the cgroup that is this directory; 0: it is none (errno says why). */
uint64_t sim_cgroup_at(const char *directory);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The file that holds the bytes of a pool that can be shared. Under the memory lock. */
#ifndef SIM_POOL_FILE_H
#define SIM_POOL_FILE_H

#include "simgpu/cuda/ranges/arena.h"

struct sim_pool_file {
	int fd;         /* ours or the exporter's; -1: none */
	uint64_t ino;   /* of that file */
	uint64_t bytes; /* of it in use: chunks are put at its end */
};

/* For a pool of that GPU; false: errno says why. */
bool sim_pool_file_open(struct sim_pool_file *file, unsigned gpu_index);
void sim_pool_file_close(struct sim_pool_file *file);
/* A chunk's bytes are in its pool's file from now on, where *ret_offset says, and no longer. */
bool sim_pool_file_add(struct sim_pool_file *file, const struct sim_range *chunk, uint64_t *ret_offset);
void sim_pool_file_remove(const struct sim_pool_file *file, struct sim_range *chunk);

#define SIM_POOL_MEMFD "sim-pool-" /* and the number of the GPU: what an importer cannot know otherwise */

#endif

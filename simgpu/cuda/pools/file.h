/* SPDX-License-Identifier: Apache-2.0 */
/* The file that holds the bytes of a shareable pool. Under the memory lock. */
#ifndef SIM_POOL_FILE_H
#define SIM_POOL_FILE_H

#include "simgpu/cuda/ranges/arena.h"

struct sim_pool_file {
	int fd;         /* own descriptor or the exporter's; -1: none */
	uint64_t ino;   /* inode of that file */
	uint64_t bytes; /* bytes in use: chunks are added at its end */
};

/* Creates the file for a pool of that GPU; false: errno has the reason. */
bool sim_pool_file_open(struct sim_pool_file *file, unsigned gpu_index);
void sim_pool_file_close(struct sim_pool_file *file);
/* Moves a chunk's bytes into its pool's file, at *ret_offset, and back out of it. */
bool sim_pool_file_add(struct sim_pool_file *file, const struct sim_range *chunk, uint64_t *ret_offset);
void sim_pool_file_remove(const struct sim_pool_file *file, struct sim_range *chunk);

#define SIM_POOL_MEMFD "sim-pool-" /* followed by the GPU's number, which an importer cannot find out otherwise */

#endif

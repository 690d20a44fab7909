/* SPDX-License-Identifier: Apache-2.0 */
/* The file of a shareable pool. */
#include "simgpu/cuda/pools/pools.h"

#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

bool sim_pool_file_open(struct sim_pool_file *file, unsigned gpu_index)
{
	char name[32];
	struct stat info;

	snprintf(name, sizeof(name), SIM_POOL_MEMFD "%u", gpu_index);
	file->fd = memfd_create(name, MFD_CLOEXEC);
	if (file->fd >= 0 && fstat(file->fd, &info) == 0) {
		file->ino = info.st_ino;
		return true;
	}
	sim_pool_file_close(file);
	return false;
}

void sim_pool_file_close(struct sim_pool_file *file)
{
	if (file->fd >= 0)
		close(file->fd);
	file->fd = -1;
}

bool sim_pool_file_add(struct sim_pool_file *file, const struct sim_range *chunk, uint64_t *ret_offset)
{
	uint64_t bytes = chunk->pages * SIM_PAGE;

	if (file->fd < 0)
		return true;
	if (ftruncate(file->fd, (off_t)(file->bytes + bytes)) ||
	    !sim_range_alias(chunk->base, bytes, file->fd, file->bytes))
		return false;
	*ret_offset = file->bytes;
	file->bytes += bytes;
	return true;
}

void sim_pool_file_remove(const struct sim_pool_file *file, struct sim_range *chunk)
{
	if (file->fd < 0)
		return;
	sim_range_unalias(chunk->base, chunk->pages * SIM_PAGE);
	/* the bytes were never in the arena's file; importers may still see them in the pool's */
	chunk->touched = false;
}

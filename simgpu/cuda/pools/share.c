/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pools shared between processes.
 *
 * A shareable pool has its bytes in a file of its own, and the file's descriptor is the handle. The export data of an
 * allocation is its position in that file, so an importer maps those pages without contacting the exporter. Only the
 * exporter is charged. An importer allocates no memory; when it frees an imported allocation, the exporter's is
 * unchanged.
 */
#include "simgpu/cuda/pools/pools.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "simgpu/cuda/base/call.h"
#include "simgpu/cuda/ranges/ranges.h"

#define MAGIC UINT64_C(0x314c4f4f504d4953)

/* The contents of the API's 64 bytes. */
struct ticket {
	uint64_t magic;
	uint64_t file_ino;
	uint64_t offset, bytes; /* position of the allocation in the file */
	uint64_t reserved[4];
};

_Static_assert(sizeof(struct ticket) == sizeof(CUmemPoolPtrExportData), "a ticket is as large as the API's");

struct pool_import {
	struct CUmemPoolHandle_st *pool;
	struct sim_range *range;
	struct pool_import *next;
};

static bool shareable(CUmemAllocationHandleType type, unsigned long long flags)
{
	return type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && !flags;
}

SIM_API CUresult cuMemPoolExportToShareableHandle(void *handle, CUmemoryPool pool, CUmemAllocationHandleType type,
                                                  unsigned long long flags)
{
	SIM_CALL();
	CUresult result = CUDA_ERROR_INVALID_VALUE;

	if (!handle || !shareable(type, flags))
		return CUDA_ERROR_INVALID_VALUE;
	sim_memory_lock();
	if (pool && sim_pool_alive(pool) && pool->file.fd >= 0 && !pool->imported) {
		int fd = fcntl(pool->file.fd, F_DUPFD_CLOEXEC, 0);

		if (fd >= 0)
			*(int *)handle = fd;
		result = fd >= 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
	}
	sim_memory_unlock();
	return result;
}

SIM_API CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *handle, CUmemAllocationHandleType type,
                                                    unsigned long long flags)
{
	SIM_CALL();
	int fd = (int)(intptr_t)handle, device = -1;
	struct stat info;

	if (!pool || !shareable(type, flags) || fstat(fd, &info))
		return CUDA_ERROR_INVALID_VALUE;
	CUresult result = sim_memfd_device(fd, SIM_POOL_MEMFD, &device);

	if (result != CUDA_SUCCESS)
		return result;
	struct CUmemPoolHandle_st *p = calloc(1, sizeof(*p));

	if (!p)
		return CUDA_ERROR_OUT_OF_MEMORY;
	sim_pool_begin(p, device);
	p->file.fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (p->file.fd < 0) {
		free(p);
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
	p->file.ino = info.st_ino;
	p->imported = true;
	sim_memory_lock();
	sim_pool_list(p);
	sim_memory_unlock();
	*pool = p;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *data, CUdeviceptr address)
{
	SIM_CALL();
	CUresult result = CUDA_ERROR_INVALID_VALUE;
	uint64_t base, bytes;

	if (!data)
		return CUDA_ERROR_INVALID_VALUE;
	sim_memory_lock();
	struct sim_range *r = sim_range_at(address);

	if (r && r->kind == SIM_RANGE_POOL && sim_pool_of(r)->file.fd >= 0 &&
	    sim_pool_block(r, address, &base, &bytes) && base == address) {
		struct ticket t = { .magic = MAGIC,
			            .file_ino = sim_pool_of(r)->file.ino,
			            .offset = ((struct pool_chunk *)r->owner)->file_offset + (base - r->base),
			            .bytes = bytes };

		memcpy(data, &t, sizeof(t));
		result = CUDA_SUCCESS;
	}
	sim_memory_unlock();
	return result;
}

/* With the lock held: maps the file's pages that hold the allocation, at addresses of this process. */
static CUresult import(struct CUmemPoolHandle_st *pool, const struct ticket *t, CUdeviceptr *ret_address)
{
	uint64_t first = t->offset / SIM_PAGE * SIM_PAGE, skip = t->offset - first;
	struct pool_import *i = calloc(1, sizeof(*i));
	struct sim_range *r = i ? sim_range_make(skip + t->bytes, SIM_PAGE) : NULL;

	if (!r || !sim_range_alias(r->base, r->pages * SIM_PAGE, pool->file.fd, first)) {
		if (r)
			sim_range_free(r);
		free(i);
		return r ? CUDA_ERROR_MAP_FAILED : CUDA_ERROR_OUT_OF_MEMORY;
	}
	r->kind = SIM_RANGE_IMPORT;
	r->owner = i;
	r->skip = skip;
	r->bytes = t->bytes;
	r->device = pool->device;
	*i = (struct pool_import){ .pool = pool, .range = r, .next = pool->imports };
	pool->imports = i;
	pool->used_bytes += t->bytes;
	pool->reserved_bytes += r->pages * SIM_PAGE;
	*ret_address = r->base + skip;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuMemPoolImportPointer(CUdeviceptr *address, CUmemoryPool pool, CUmemPoolPtrExportData *data)
{
	SIM_CALL();
	CUresult result = CUDA_ERROR_INVALID_VALUE;
	struct ticket t;
	struct stat info;

	if (!address || !data)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(&t, data, sizeof(t));
	sim_memory_lock();
	if (t.magic == MAGIC && pool && sim_pool_alive(pool) && pool->imported && t.file_ino == pool->file.ino &&
	    t.bytes && fstat(pool->file.fd, &info) == 0 && t.offset <= (uint64_t)info.st_size &&
	    t.bytes <= (uint64_t)info.st_size - t.offset)
		result = import(pool, &t, address);
	sim_memory_unlock();
	return result;
}

bool sim_pool_import_free(uint64_t address)
{
	struct sim_range *r = sim_range_at(address);
	struct pool_import *i = r && r->kind == SIM_RANGE_IMPORT ? r->owner : NULL;

	if (!i || address != r->base + r->skip)
		return false;
	struct CUmemPoolHandle_st *pool = i->pool;

	for (struct pool_import **at = &pool->imports; *at; at = &(*at)->next) {
		if (*at == i) {
			*at = i->next;
			break;
		}
	}
	pool->used_bytes -= r->bytes;
	pool->reserved_bytes -= r->pages * SIM_PAGE;
	sim_range_unalias(r->base, r->pages * SIM_PAGE);
	r->touched = false; /* the bytes were never in this process's own file */
	sim_range_free(r);
	free(i);
	sim_pools_settle(pool->device);
	return true;
}

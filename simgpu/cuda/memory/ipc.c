/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device memory of another process. A handle names the process, the file that holds the bytes, and the offset; opening
 * it maps them at addresses of this process. Only the exporter is charged. Both must see each other in /proc, with
 * permission.
 */
#include "simgpu/cuda/memory/memory.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "simgpu/cuda/base/call.h"

#define MAGIC UINT64_C(0x0031504943504953)

/* The contents of the API's 64 opaque bytes. */
struct ticket {
	uint64_t magic;
	uint64_t file_ino; /* inode of the exporter's arena: its pid or descriptor may have been reused */
	uint64_t file_offset, file_bytes; /* whole pages */
	uint64_t skip, bytes;             /* position of the allocation in them */
	int32_t fd;
	uint32_t gpu_index;
	uint64_t reserved;
};

_Static_assert(sizeof(struct ticket) == sizeof(CUipcMemHandle), "a handle is as large as the API's");

struct import {
	struct ticket ticket;
	struct sim_range *range;
	struct CUctx_st *context;
	uint32_t references;
	struct import *next;
};

static struct import *imports; /* under the memory lock */

SIM_API CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address)
{
	SIM_CALL_CONTEXT(context);
	(void)context;
	struct sim_block block;
	CUresult result = CUDA_ERROR_INVALID_VALUE;

	if (!handle)
		return CUDA_ERROR_INVALID_VALUE;
	sim_memory_lock();
	/* Managed, mapped, pooled and imported memory are shared by other calls, or not at all. */
	if (sim_block_at(address, &block) &&
	    (block.range->kind == SIM_RANGE_PLAIN || block.range->kind == SIM_RANGE_SLAB)) {
		const struct sim_process *p = sim_process();
		struct ticket t = { .magic = MAGIC,
			            .file_ino = p->client->memory_fd_ino,
			            .fd = p->client->memory_fd,
			            .skip = block.base - block.range->base,
			            .bytes = block.bytes,
			            .file_offset = sim_arena_offset(block.range->base),
			            .file_bytes = block.range->pages * SIM_PAGE,
			            .gpu_index = sim_device_get(block.device)->gpu_index };

		block.range->touched = true; /* the other process may write to it */
		p->client->exported = 1;
		memcpy(handle, &t, sizeof(t));
		result = CUDA_SUCCESS;
	}
	sim_memory_unlock();
	return result;
}

/* The exporter's pid as this process sees it: it may be in another PID namespace. */
static uint32_t exporters_pid(const struct ticket *t)
{
	const struct sim_state *state = sim_process()->state;

	for (unsigned i = 0; i < SIM_CLIENTS; i++)
		if (state->client[i].in_use && state->client[i].memory_fd_ino == t->file_ino)
			return sim_client_pid(state, i);
	return 0;
}

static int exporters_file(const struct ticket *t)
{
	char path[64];
	struct stat info;

	snprintf(path, sizeof(path), "/proc/%u/fd/%d", exporters_pid(t), t->fd);
	int fd = open(path, O_RDWR | O_CLOEXEC);

	if (fd >= 0 && (fstat(fd, &info) || info.st_ino != t->file_ino)) {
		close(fd);
		fd = -1;
	}
	return fd;
}

/* The GPU's ordinal in this process or, if it is not visible here, that of the context. */
static int ordinal_of(uint32_t gpu_index, const struct CUctx_st *context)
{
	for (int d = 0; sim_device_get(d); d++)
		if (sim_device_get(d)->gpu_index == gpu_index)
			return d;
	return context->device;
}

/* With the lock held; NULL = cannot be mapped. */
static struct import *import_make(const struct ticket *t, struct CUctx_st *context)
{
	struct import *i = calloc(1, sizeof(*i));
	int fd = i ? exporters_file(t) : -1;
	struct sim_range *r = fd >= 0 ? sim_range_make(t->file_bytes, SIM_PAGE) : NULL;

	if (r && !sim_range_alias(r->base, t->file_bytes, fd, t->file_offset)) {
		sim_range_free(r);
		r = NULL;
	}
	if (fd >= 0)
		close(fd); /* the mapping keeps the file open */
	if (!r) {
		free(i);
		return NULL;
	}
	r->kind = SIM_RANGE_IMPORT;
	r->skip = t->skip;
	r->bytes = t->bytes;
	r->device = ordinal_of(t->gpu_index, context);
	r->context = context;
	*i = (struct import){ .ticket = *t, .range = r, .context = context, .next = imports };
	imports = i;
	sim_process()->client->imported++;
	return i;
}

static void import_drop(struct import *import)
{
	for (struct import **at = &imports; *at; at = &(*at)->next) {
		if (*at == import) {
			*at = import->next;
			break;
		}
	}
	sim_range_unalias(import->range->base, import->range->pages * SIM_PAGE);
	import->range->touched = false; /* the bytes were never in this process's own file */
	sim_range_free(import->range);
	sim_process()->client->imported--;
	free(import);
}

SIM_API CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *address, CUipcMemHandle handle, unsigned flags)
{
	SIM_CALL_CONTEXT(context);
	struct ticket t;

	memcpy(&t, &handle, sizeof(t));
	if (!address || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
		return CUDA_ERROR_INVALID_VALUE;
	if (t.magic != MAGIC || t.skip + t.bytes > t.file_bytes || t.file_bytes % SIM_PAGE)
		return CUDA_ERROR_INVALID_HANDLE;
	if (t.file_ino == sim_process()->client->memory_fd_ino)
		return CUDA_ERROR_INVALID_CONTEXT; /* a process cannot open its own memory */
	sim_memory_lock();
	struct import *i = imports;

	while (i && !(i->context == context && memcmp(&i->ticket, &t, sizeof(t)) == 0))
		i = i->next;
	if (!i)
		i = import_make(&t, context);
	if (i) {
		i->references++;
		*address = i->range->base + t.skip;
	}
	sim_memory_unlock();
	return i ? CUDA_SUCCESS : CUDA_ERROR_MAP_FAILED;
}

SIM_API CUresult cuIpcOpenMemHandle(CUdeviceptr *address, CUipcMemHandle handle, unsigned flags)
{
	return cuIpcOpenMemHandle_v2(address, handle, flags);
}

SIM_API CUresult cuIpcCloseMemHandle(CUdeviceptr address)
{
	SIM_CALL();
	sim_memory_lock();
	struct import *i = imports;

	while (i && i->range->base + i->ticket.skip != address)
		i = i->next;
	bool found = i != NULL;

	if (i && --i->references == 0)
		import_drop(i);
	sim_memory_unlock();
	return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

void sim_imports_context_gone(struct CUctx_st *context)
{
	for (struct import *i = imports, *next; i; i = next) {
		next = i->next;
		if (i->context == context)
			import_drop(i);
	}
}

/* --- events of other processes: not simulated; the error is the driver's where it lacks the feature --------------- */

SIM_API CUresult cuIpcGetEventHandle(CUipcEventHandle *handle, CUevent event)
{
	SIM_CALL_CONTEXT(context);
	(void)context;
	if (!handle)
		return CUDA_ERROR_INVALID_VALUE;
	return SIM_HANDLE(event, SIM_TAG_EVENT) ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_HANDLE;
}

SIM_API CUresult cuIpcOpenEventHandle(CUevent *event, CUipcEventHandle handle)
{
	SIM_CALL_CONTEXT(context);
	(void)context;
	(void)handle;
	return event ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Pages of device address space: see arena.h. Callers hold the lock. */
#include "simgpu/cuda/ranges/ranges.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "simgpu/cuda/base/process.h"

#define ARENA_BYTES (UINT64_C(1) << 42) /* 4 TiB of addresses: with reuse, real use stays far below */
#define ARENA_PAGES (ARENA_BYTES / SIM_PAGE)
#define BINS 1024

static uint8_t *base; /* page-aligned start of the mapping */
static int fd = -1;
static uint64_t next_page;
static struct sim_range **page_range; /* page -> range */
static struct sim_range *bins[BINS];  /* freed runs by number of pages; the last bin has all longer ones */

pthread_mutex_t sim_memory_mutex = PTHREAD_MUTEX_INITIALIZER;

static bool arena_open(void)
{
	if (base)
		return true;
	fd = memfd_create("sim-device-memory", MFD_CLOEXEC);
	if (fd < 0 || ftruncate(fd, (off_t)ARENA_BYTES))
		return false;
	uint8_t *at = mmap(NULL, ARENA_BYTES + SIM_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (at == MAP_FAILED)
		return false;
	at = (uint8_t *)(((uintptr_t)at + SIM_PAGE - 1) & ~(SIM_PAGE - 1));
	if (mmap(at, ARENA_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, fd, 0) == MAP_FAILED)
		return false;
	madvise(at, ARENA_BYTES, MADV_DONTFORK);
	page_range = mmap(NULL, ARENA_PAGES * sizeof(*page_range), PROT_READ | PROT_WRITE,
	                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (page_range == MAP_FAILED)
		return false;
	struct stat info;

	if (fstat(fd, &info) == 0) {
		sim_process()->client->memory_fd_ino = info.st_ino;
		sim_process()->client->memory_fd = fd;
	}
	base = at;
	return true;
}

struct sim_range *sim_range_make(uint64_t bytes, uint64_t alignment)
{
	uint64_t pages = (bytes + SIM_PAGE - 1) / SIM_PAGE;

	if (!arena_open() || pages == 0 || pages > ARENA_PAGES / 2)
		return NULL;
	if (alignment <= SIM_PAGE) {
		struct sim_range **bin = &bins[pages < BINS ? pages : BINS - 1];

		for (struct sim_range *r = *bin, **at = bin; r; at = &r->next, r = r->next) {
			if (r->pages != pages)
				continue;
			*at = r->next;
			uint64_t address = r->base;

			memset(r, 0, sizeof(*r));
			r->base = address;
			r->pages = pages;
			for (uint64_t p = 0; p < pages; p++)
				page_range[(address - (uintptr_t)base) / SIM_PAGE + p] = r;
			return r;
		}
	}
	uint64_t step = alignment > SIM_PAGE ? alignment / SIM_PAGE : 1;
	uint64_t first =
		(((uintptr_t)base / SIM_PAGE + next_page + step - 1) / step) * step - (uintptr_t)base / SIM_PAGE;

	if (first + pages > ARENA_PAGES)
		return NULL;
	struct sim_range *r = calloc(1, sizeof(*r));

	if (!r)
		return NULL;
	next_page = first + pages;
	r->base = (uintptr_t)base + first * SIM_PAGE;
	r->pages = pages;
	for (uint64_t p = 0; p < pages; p++)
		page_range[first + p] = r;
	return r;
}

void sim_range_free(struct sim_range *range)
{
	uint64_t first = (range->base - (uintptr_t)base) / SIM_PAGE;
	struct sim_range **bin = &bins[range->pages < BINS ? range->pages : BINS - 1];

	for (uint64_t p = 0; p < range->pages; p++)
		page_range[first + p] = NULL;
	if (range->touched)
		fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)(first * SIM_PAGE),
		          (off_t)(range->pages * SIM_PAGE));
	range->next = *bin;
	*bin = range;
}

struct sim_range *sim_range_at(uint64_t address)
{
	if (!base || address < (uintptr_t)base || address >= (uintptr_t)base + ARENA_BYTES)
		return NULL;
	return page_range[(address - (uintptr_t)base) / SIM_PAGE];
}

void *sim_host_address(uint64_t device_address)
{
	return (void *)(uintptr_t)device_address;
}

uint64_t sim_arena_offset(uint64_t device_address)
{
	return device_address - (uintptr_t)base;
}

int sim_arena_fd(void)
{
	return arena_open() ? fd : -1;
}

bool sim_range_alias(uint64_t address, uint64_t bytes, int from, uint64_t offset)
{
	void *at = (void *)(uintptr_t)address;

	if (mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, from, (off_t)offset) ==
	    MAP_FAILED)
		return false;
	madvise(at, bytes, MADV_DONTFORK);
	return true;
}

void sim_range_unalias(uint64_t address, uint64_t bytes)
{
	sim_range_alias(address, bytes, fd, sim_arena_offset(address));
}

struct sim_range *sim_range_after(uint64_t *cursor)
{
	while (base && *cursor < next_page) {
		struct sim_range *r = page_range[*cursor];

		*cursor += r ? r->pages : 1;
		if (r)
			return r;
	}
	return NULL;
}

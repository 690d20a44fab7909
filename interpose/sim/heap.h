/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An allocator of address ranges that never touches them: runs of equal units, with the bookkeeping outside.
 *
 * Free runs hang in bins by size, neighbours merge at once, and a bitmap of run starts finds the run around any
 * address; everything is constant time or nearly so at any number of live allocations. A space is the bookkeeping of an
 * address range; several heaps may own segments of one space.
 */
#ifndef SIM_HEAP_H
#define SIM_HEAP_H

#include <stdbool.h>
#include <stdint.h>

#define HEAP_NIL UINT32_MAX
#define HEAP_BINS 128

struct heap_run {
	uint32_t units;
	uint32_t foot; /* at a free run's last unit: where it starts */
	uint16_t flags;
	uint16_t owner; /* from here on the user's, for runs in use */
	uint16_t kind;
	uint16_t spare;
	union {
		struct {
			uint32_t next;
			uint32_t prev;
		};
		uint64_t bytes; /* asked for */
	};
};

struct heap_space {
	struct heap_run *run; /* one per unit; sparse */
	uint64_t *start;      /* one bit per unit */
};

struct heap {
	struct heap_space *space;
	uint64_t map[HEAP_BINS / 64];
	uint32_t bin[HEAP_BINS];
};

/* Room for `units` units of bookkeeping; untouched parts cost nothing. 0 or a negative errno. */
int heap_space_init(struct heap_space *s, uint64_t units);

void heap_init(struct heap *h, struct heap_space *s);

/* Give the heap a segment; it stays one: runs of two segments never merge. */
void heap_add(struct heap *h, uint32_t first, uint32_t units);

/* First unit of a run of `units`, HEAP_NIL if there is none. */
uint32_t heap_alloc(struct heap *h, uint32_t units);

/* The free run that `unit`'s run became part of; *ret_whole says that its segment is now entirely free. */
uint32_t heap_free(struct heap *h, uint32_t unit, bool *ret_whole);

/* Take back an entirely free segment. */
void heap_remove(struct heap *h, uint32_t first);

/* First unit of the run in use around `unit`, HEAP_NIL if it is free. Some segment must contain `unit`. */
uint32_t heap_find(const struct heap_space *s, uint32_t unit);

/* The next run in use at or after `unit` and below `end`, HEAP_NIL if there is none. */
uint32_t heap_next(const struct heap_space *s, uint32_t unit, uint32_t end);

#endif

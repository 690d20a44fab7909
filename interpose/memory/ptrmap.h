/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory that this process holds on the GPU: from a pointer or handle to its size, device and owner.
 *
 * Open addressing in 64 shards, each with its own spin lock held for a few dozen instructions (and one mmap when a
 * shard grows), never over a driver call. Lookup does not depend on how many allocations are live. The shards lie in
 * memory that fork wipes, so a child starts with an empty map and free locks.
 */
#ifndef SLUICE_PTRMAP_H
#define SLUICE_PTRMAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum ptrmap_kind {
	PTRMAP_NONE,     /* a free place */
	PTRMAP_MEMORY,   /* device pointer; owner = tag of its context */
	PTRMAP_ARRAY,    /* CUarray; owner likewise */
	PTRMAP_MIPMAP,   /* CUmipmappedArray; owner likewise */
	PTRMAP_ASYNC,    /* stream-ordered pointer, charged through its pool; owner = index of the pool */
	PTRMAP_HANDLE,   /* VMM handle: bytes = id of the physical memory, owner = references */
	PTRMAP_PHYSICAL, /* id of physical memory; owner = number of handles and mappings that keep it */
	PTRMAP_MAPPING,  /* mapped address: bytes = length, owner = id of the physical memory */
	PTRMAP_CONTEXT,  /* CUcontext: memory of the context itself */
	PTRMAP_GRAPH,    /* CUgraphExec | ordinal: bytes = need of a launch, owner = where it is mapped, 0 = nowhere */
	PTRMAP_PRIMARY,  /* device ordinal + 1: the same for a primary context; owner = tag of the context */
};

struct ptrmap_entry {
	uint64_t key;
	uint64_t bytes;
	uint32_t owner;
	uint8_t kind;
	int8_t device;
	uint16_t reserved;
};

#define PTRMAP_SHARDS 64

/* Called first in each process; false: no memory that fork wipes. */
bool ptrmap_prepare(void);
/* False only when memory ran out. An entry with the same kind and key is replaced. */
bool ptrmap_put(const struct ptrmap_entry *entry);
/* The same, but an existing entry stays, and *ret_new says so. */
bool ptrmap_add(const struct ptrmap_entry *entry, bool *ret_new);
/* Remove and return an entry; false: not in the map. */
bool ptrmap_take(enum ptrmap_kind kind, uint64_t key, struct ptrmap_entry *ret_entry);
bool ptrmap_get(enum ptrmap_kind kind, uint64_t key, struct ptrmap_entry *ret_entry);
/* Add `delta` to the owner word of an entry and remove the entry when it becomes 0. Returns false if there is none;
 * *ret_entry holds the entry after the change (or as it was, when owner is 0). */
bool ptrmap_refer(enum ptrmap_kind kind, uint64_t key, int delta, struct ptrmap_entry *ret_entry);
/* Remove memory and arrays of one owner; their bytes per device are added to `freed`. */
void ptrmap_drop_owner(uint32_t owner, uint64_t freed[]);
/* Live entries, and places probed to find one: the tests check these instead of a time. */
size_t ptrmap_count(void);
size_t ptrmap_probes(enum ptrmap_kind kind, uint64_t key);
/* Puts the locks into a state that a parent's threads may leave to its child: all taken, or all released. */
void ptrmap_hold_locks(bool hold);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this process holds on the GPU: from a pointer or handle to its size, device and owner.
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
	PTRMAP_PHYSICAL, /* id of physical memory; owner = handles and mappings that keep it */
	PTRMAP_MAPPING,  /* mapped address: bytes = length, owner = id of the physical memory */
	PTRMAP_CONTEXT,  /* CUcontext: what the context itself takes */
	PTRMAP_GRAPH, /* CUgraphExec | ordinal: bytes = what a launch may take, owner = where it is mapped, 0 = nowhere */
	PTRMAP_PRIMARY, /* device ordinal + 1: the same for a primary context; owner = tag of the context */
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

/* Before anything else, in each process; false: no memory that fork wipes. */
bool ptrmap_prepare(void);
/* False only when memory ran out. An entry with the same kind and key is replaced. */
bool ptrmap_put(const struct ptrmap_entry *entry);
/* The same, but what is there stays, and *ret_new says so. */
bool ptrmap_add(const struct ptrmap_entry *entry, bool *ret_new);
/* Remove and return; false: not ours. */
bool ptrmap_take(enum ptrmap_kind kind, uint64_t key, struct ptrmap_entry *ret_entry);
bool ptrmap_get(enum ptrmap_kind kind, uint64_t key, struct ptrmap_entry *ret_entry);
/* Add `delta` to the owner word of an entry and remove the entry when it becomes 0. Returns false if there is none;
 * *ret_entry holds it as it is (or was, when owner is 0) afterwards. */
bool ptrmap_refer(enum ptrmap_kind kind, uint64_t key, int delta, struct ptrmap_entry *ret_entry);
/* Remove memory and arrays of one owner; what they took per device is added to `freed`. */
void ptrmap_drop_owner(uint32_t owner, uint64_t freed[]);
/* Entries live, and the places looked at to find one: what the tests assert instead of a time. */
size_t ptrmap_count(void);
size_t ptrmap_probes(enum ptrmap_kind kind, uint64_t key);
/* As threads of a parent may leave them to its child: all locks taken, or given back. */
void ptrmap_hold_locks(bool hold);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Linear probing with backward-shift deletion: no tombstones, so a program that frees as much as it allocates for a
 * week probes no longer than one that has just started. */
#include "interpose/memory/ptrmap.h"

#include <sched.h>
#include <sys/mman.h>

#include "interpose/tenant/moves.h"

#define FIRST_CAPACITY 128 /* 3 KiB: one page per shard in use; doubles when half full */

struct ptrmap_shard {
	uint32_t lock;
	uint32_t count;
	uint32_t capacity; /* a power of two, 0 before the first entry */
	uint32_t reserved;
	struct ptrmap_entry *table;
	uint8_t padding[40]; /* one cache line each: threads on different shards do not contend */
};

static struct ptrmap_shard *shards; /* PTRMAP_SHARDS of them, wiped by fork */

bool ptrmap_prepare(void)
{
	return wiped_memory((void **)&shards, PTRMAP_SHARDS * sizeof(*shards)) != NULL;
}

static uint64_t hash(enum ptrmap_kind kind, uint64_t key)
{
	uint64_t h = (key ^ (uint64_t)kind << 56) * UINT64_C(0x9e3779b97f4a7c15);

	/* Pointers are aligned and sequential: a single multiplication leaves runs, which slow linear probing (5 places
	 * per lookup at 50,000 live; with the second multiplication it is 1.3). */
	h ^= h >> 32;
	h *= UINT64_C(0xd6e8feb86659fd93);
	return h ^ h >> 32;
}

static struct ptrmap_shard *shard_lock(uint64_t h)
{
	struct ptrmap_shard *s = &shards[h >> 58];

	for (unsigned int spins = 0; __atomic_exchange_n(&s->lock, 1, __ATOMIC_ACQUIRE); spins++)
		if (spins > 64)
			sched_yield(); /* the holder was preempted */
	return s;
}

static void shard_unlock(struct ptrmap_shard *s)
{
	__atomic_store_n(&s->lock, 0, __ATOMIC_RELEASE);
}

static uint32_t home(const struct ptrmap_shard *s, uint64_t h)
{
	return (uint32_t)h & (s->capacity - 1);
}

/* The entry, or the free place for it. The table is never full. */
static struct ptrmap_entry *find(const struct ptrmap_shard *s, uint64_t h, enum ptrmap_kind kind, uint64_t key)
{
	uint32_t i = home(s, h);

	while (s->table[i].kind != PTRMAP_NONE && (s->table[i].key != key || s->table[i].kind != kind))
		i = (i + 1) & (s->capacity - 1);
	return &s->table[i];
}

static bool grow(struct ptrmap_shard *s)
{
	struct ptrmap_shard larger = { .capacity = s->capacity ? 2 * s->capacity : FIRST_CAPACITY };
	size_t bytes = larger.capacity * sizeof(*s->table);

	larger.table = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (larger.table == MAP_FAILED)
		return false;
	for (uint32_t i = 0; i < s->capacity; i++) {
		const struct ptrmap_entry *e = &s->table[i];

		if (e->kind != PTRMAP_NONE)
			*find(&larger, hash(e->kind, e->key), e->kind, e->key) = *e;
	}
	if (s->table)
		munmap(s->table, s->capacity * sizeof(*s->table));
	s->table = larger.table;
	s->capacity = larger.capacity;
	return true;
}

static void erase(struct ptrmap_shard *s, struct ptrmap_entry *gone)
{
	uint32_t mask = s->capacity - 1, hole = (uint32_t)(gone - s->table);

	for (uint32_t i = (hole + 1) & mask; s->table[i].kind != PTRMAP_NONE; i = (i + 1) & mask) {
		uint32_t at_home = home(s, hash(s->table[i].kind, s->table[i].key));

		/* it may move back into the hole only if that does not pass its home */
		if (((i - at_home) & mask) >= ((i - hole) & mask)) {
			s->table[hole] = s->table[i];
			hole = i;
		}
	}
	s->table[hole].kind = PTRMAP_NONE;
	s->count--;
}

static bool store(const struct ptrmap_entry *entry, bool replace, bool *ret_new)
{
	uint64_t h = hash(entry->kind, entry->key);
	struct ptrmap_shard *s = shard_lock(h);
	struct ptrmap_entry *place;
	bool ok = (s->count + 1) * 2 <= s->capacity || grow(s);

	if (ok) {
		place = find(s, h, entry->kind, entry->key);
		*ret_new = place->kind == PTRMAP_NONE;
		s->count += *ret_new;
		if (*ret_new || replace)
			*place = *entry;
	}
	shard_unlock(s);
	return ok;
}

bool ptrmap_put(const struct ptrmap_entry *entry)
{
	bool is_new;

	return store(entry, true, &is_new);
}

bool ptrmap_add(const struct ptrmap_entry *entry, bool *ret_new)
{
	return store(entry, false, ret_new);
}

bool ptrmap_take(enum ptrmap_kind kind, uint64_t key, struct ptrmap_entry *ret_entry)
{
	uint64_t h = hash(kind, key);
	struct ptrmap_shard *s = shard_lock(h);
	struct ptrmap_entry *e = s->capacity ? find(s, h, kind, key) : NULL;
	bool found = e && e->kind != PTRMAP_NONE;

	if (found) {
		*ret_entry = *e;
		erase(s, e);
	}
	shard_unlock(s);
	return found;
}

bool ptrmap_get(enum ptrmap_kind kind, uint64_t key, struct ptrmap_entry *ret_entry)
{
	uint64_t h = hash(kind, key);
	struct ptrmap_shard *s = shard_lock(h);
	struct ptrmap_entry *e = s->capacity ? find(s, h, kind, key) : NULL;
	bool found = e && e->kind != PTRMAP_NONE;

	if (found)
		*ret_entry = *e;
	shard_unlock(s);
	return found;
}

bool ptrmap_refer(enum ptrmap_kind kind, uint64_t key, int delta, struct ptrmap_entry *ret_entry)
{
	uint64_t h = hash(kind, key);
	struct ptrmap_shard *s = shard_lock(h);
	struct ptrmap_entry *e = s->capacity ? find(s, h, kind, key) : NULL;
	bool found = e && e->kind != PTRMAP_NONE;

	if (found) {
		e->owner += (uint32_t)delta;
		*ret_entry = *e;
		if (e->owner == 0)
			erase(s, e);
	}
	shard_unlock(s);
	return found;
}

static bool belongs_to_context(const struct ptrmap_entry *e)
{
	return e->kind == PTRMAP_MEMORY || e->kind == PTRMAP_ARRAY || e->kind == PTRMAP_MIPMAP;
}

void ptrmap_drop_owner(uint32_t owner, uint64_t freed[])
{
	for (uint64_t n = 0; n < PTRMAP_SHARDS; n++) {
		struct ptrmap_shard *s = shard_lock(n << 58);

		for (uint32_t i = 0; i < s->capacity; i++) {
			/* erasing may move another entry of that owner into this place */
			while (belongs_to_context(&s->table[i]) && s->table[i].owner == owner) {
				freed[s->table[i].device] += s->table[i].bytes;
				erase(s, &s->table[i]);
			}
		}
		/* an entry that wrapped around the end of the table and moved behind this position */
		for (uint32_t i = 0; i < s->capacity && s->table[i].kind != PTRMAP_NONE; i++) {
			while (belongs_to_context(&s->table[i]) && s->table[i].owner == owner) {
				freed[s->table[i].device] += s->table[i].bytes;
				erase(s, &s->table[i]);
			}
		}
		shard_unlock(s);
	}
}

size_t ptrmap_count(void)
{
	size_t count = 0;

	for (uint64_t n = 0; n < PTRMAP_SHARDS; n++) {
		struct ptrmap_shard *s = shard_lock(n << 58);

		count += s->count;
		shard_unlock(s);
	}
	return count;
}

size_t ptrmap_probes(enum ptrmap_kind kind, uint64_t key)
{
	uint64_t h = hash(kind, key);
	struct ptrmap_shard *s = shard_lock(h);
	size_t probes = 0;

	if (s->capacity) {
		const struct ptrmap_entry *e = find(s, h, kind, key);

		probes = (((uint32_t)(e - s->table) - home(s, h)) & (s->capacity - 1)) + 1;
	}
	shard_unlock(s);
	return probes;
}

void ptrmap_hold_locks(bool hold)
{
	for (uint64_t n = 0; n < PTRMAP_SHARDS; n++) {
		if (hold)
			shard_lock(n << 58);
		else
			shard_unlock(&shards[n]);
	}
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The cost table: see cost.h. */
#include "interpose/compute/rules/cost.h"

#include <stddef.h>
#include <sys/mman.h>

#include "interpose/compute/rules/gate.h"

#define COST_ENTRIES 4096 /* 128 KiB; a large model has a few hundred distinct launches */
#define COST_PROBES 8

static struct cost_entry *table; /* published once by compare-and-swap, never unmapped */

static struct cost_entry *cost_table(void)
{
	struct cost_entry *t = __atomic_load_n(&table, __ATOMIC_ACQUIRE);

	if (t)
		return t;
	struct cost_entry *fresh =
		mmap(NULL, COST_ENTRIES * sizeof(*fresh), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (fresh == MAP_FAILED)
		return NULL;
	if (__atomic_compare_exchange_n(&table, &t, fresh, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		return fresh;
	munmap(fresh, COST_ENTRIES * sizeof(*fresh));
	return t;
}

uint64_t cost_key(const void *handle, const struct cost_shape *shape, int device)
{
	uint64_t h = gate_mix((uint64_t)(uintptr_t)handle + (uint64_t)(unsigned)device);

	if (shape) {
		h = gate_mix(h ^ ((uint64_t)shape->grid[0] << 32 | shape->grid[1]));
		h = gate_mix(h ^ ((uint64_t)shape->grid[2] << 32 | shape->block[0]));
		h = gate_mix(h ^ ((uint64_t)shape->block[1] << 32 | shape->block[2]));
		h = gate_mix(h ^ shape->shared_bytes);
	}
	return h ? h : 1;
}

/* Called after every change of the other fields. Of two concurrent changes the later writer may have read before the
 * earlier one wrote: the next timed launch corrects it. */
static void publish(struct cost_entry *e)
{
	uint64_t key = __atomic_load_n(&e->key, __ATOMIC_RELAXED);
	uint64_t cost_ns = __atomic_load_n(&e->cost_ns, __ATOMIC_RELAXED);
	bool known = __atomic_load_n(&e->tries, __ATOMIC_RELAXED) >= COST_SAMPLE_FIRST &&
	             !__atomic_load_n(&e->wary, __ATOMIC_RELAXED) && cost_ns && cost_ns <= UINT32_MAX;

	__atomic_store_n(&e->pass, key ^ (known ? cost_ns : COST_NO_PASS), __ATOMIC_RELAXED);
}

static void unpublish(struct cost_entry *e)
{
	__atomic_store_n(&e->pass, __atomic_load_n(&e->key, __ATOMIC_RELAXED) ^ COST_NO_PASS, __ATOMIC_RELAXED);
}

static struct cost_entry *probe(uint64_t key, bool insert)
{
	struct cost_entry *t = cost_table();

	if (!t)
		return NULL;
	for (unsigned i = 0; i < COST_PROBES; i++) {
		struct cost_entry *e = &t[(key + i) % COST_ENTRIES];
		uint64_t found = __atomic_load_n(&e->key, __ATOMIC_ACQUIRE);

		if (found == key)
			return e;
		if (found == 0) {
			if (!insert)
				return NULL;
			if (__atomic_compare_exchange_n(&e->key, &found, key, false, __ATOMIC_ACQ_REL,
			                                __ATOMIC_ACQUIRE)) {
				unpublish(e);
				return e;
			}
			if (found == key)
				return e;
		}
	}
	if (!insert)
		return NULL;
	/* Full neighbourhood: the home entry is evicted and reused. */
	struct cost_entry *e = &t[key % COST_ENTRIES];

	__atomic_store_n(&e->pass, key ^ COST_NO_PASS, __ATOMIC_RELAXED);
	__atomic_store_n(&e->samples, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&e->tries, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&e->cost_ns, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&e->wary, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&e->lent, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&e->key, key, __ATOMIC_RELEASE);
	return e;
}

struct cost_entry *cost_entry(uint64_t key)
{
	return probe(key, true);
}

struct cost_entry *cost_lookup(uint64_t key)
{
	return probe(key, false);
}

void cost_lend(struct cost_entry *entry, uint64_t price_ns, uint32_t timed)
{
	uint64_t none = 0;

	if (!__atomic_compare_exchange_n(&entry->cost_ns, &none, price_ns, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		return;
	__atomic_store_n(&entry->lent, 1, __ATOMIC_RELAXED);
	__atomic_store_n(&entry->tries, (uint16_t)(COST_SAMPLE_FIRST - timed), __ATOMIC_RELAXED);
	publish(entry);
}

void cost_tried(struct cost_entry *entry)
{
	uint16_t tries = __atomic_load_n(&entry->tries, __ATOMIC_RELAXED);

	if (tries < UINT16_MAX)
		__atomic_store_n(&entry->tries, (uint16_t)(tries + 1), __ATOMIC_RELAXED);
	publish(entry);
}

void cost_learn(struct cost_entry *entry, uint64_t sample_ns, bool exact)
{
	struct gate_estimate estimate = {
		.cost_ns = __atomic_load_n(&entry->cost_ns, __ATOMIC_RELAXED),
		.samples = __atomic_load_n(&entry->samples, __ATOMIC_RELAXED),
		.wary = __atomic_load_n(&entry->wary, __ATOMIC_RELAXED),
	};

	if (!exact) {
		if (estimate.cost_ns == 0 || cost_is_lent(entry) || sample_ns < estimate.cost_ns)
			__atomic_store_n(&entry->cost_ns, sample_ns ? sample_ns : 1, __ATOMIC_RELAXED);
		__atomic_store_n(&entry->lent, 0, __ATOMIC_RELAXED);
		publish(entry);
		return;
	}
	estimate = gate_estimate_after(estimate, sample_ns);
	__atomic_store_n(&entry->cost_ns, estimate.cost_ns, __ATOMIC_RELAXED);
	__atomic_store_n(&entry->samples, (uint16_t)(estimate.samples < UINT16_MAX ? estimate.samples : UINT16_MAX),
	                 __ATOMIC_RELAXED);
	__atomic_store_n(&entry->lent, 0, __ATOMIC_RELAXED);
	static_assert(GATE_WARY_LAUNCHES <= UINT16_MAX, "fits");
	__atomic_store_n(&entry->wary, (uint16_t)estimate.wary, __ATOMIC_RELAXED);
	publish(entry);
}

static void relearn(struct cost_entry *e)
{
	unpublish(e);
	__atomic_store_n(&e->samples, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&e->tries, 0, __ATOMIC_RELAXED);
}

void cost_relearn(uint64_t key)
{
	struct cost_entry *e = cost_lookup(key);

	if (e)
		relearn(e);
}

void cost_relearn_all(void)
{
	struct cost_entry *t = __atomic_load_n(&table, __ATOMIC_ACQUIRE);

	for (unsigned i = 0; t && i < COST_ENTRIES; i++)
		relearn(&t[i]);
}

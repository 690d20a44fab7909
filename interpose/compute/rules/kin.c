/* SPDX-License-Identifier: Apache-2.0 */
/* The table of functions: see kin.h. */
#include "interpose/compute/rules/kin.h"

#include <assert.h>
#include <stddef.h>
#include <sys/mman.h>

#include "interpose/compute/rules/gate.h"

#define KIN_ENTRIES 4096 /* 256 KiB, of which only touched pages take memory */
#define KIN_PROBES 8
#define JUDGE_BOUNDS 8 /* upper bounds that are judged together */
#define JUDGE_WARY 128 /* after that judgement, which may be wrong: samples until the price is trusted again */
#define JUDGE_FAR 6    /* so many of them far above: times of this size vary; at the edges of windows a few are */

/* Of a function, or of one octave of it. */
struct kin_entry {
	uint64_t key;       /* 0 = free */
	uint64_t cost_ns;   /* mean; 0 = never timed */
	uint64_t thread_fs; /* time per thread, of a function */
	uint32_t samples;
	uint32_t wary;     /* samples until the price is trusted again */
	uint64_t least_ns; /* of the upper bounds since the last judgement */
	uint32_t bounds;   /* their number */
	uint32_t far;      /* those far above the price */
	uint64_t reserved[2];
};

static_assert(sizeof(struct kin_entry) == 64, "one cache line");

static struct kin_entry *table; /* published once by compare-and-swap, never unmapped */

static struct kin_entry *kin_table(void)
{
	struct kin_entry *t = __atomic_load_n(&table, __ATOMIC_ACQUIRE);

	if (t)
		return t;
	struct kin_entry *fresh =
		mmap(NULL, KIN_ENTRIES * sizeof(*fresh), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (fresh == MAP_FAILED)
		return NULL;
	if (__atomic_compare_exchange_n(&table, &t, fresh, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		return fresh;
	munmap(fresh, KIN_ENTRIES * sizeof(*fresh));
	return t;
}

static void clear(struct kin_entry *e)
{
	__atomic_store_n(&e->cost_ns, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&e->thread_fs, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&e->samples, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&e->wary, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&e->bounds, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&e->far, 0, __ATOMIC_RELAXED);
}

static struct kin_entry *probe(uint64_t key, bool insert)
{
	struct kin_entry *t = insert ? kin_table() : __atomic_load_n(&table, __ATOMIC_ACQUIRE);

	if (!t)
		return NULL;
	for (unsigned i = 0; i < KIN_PROBES; i++) {
		struct kin_entry *e = &t[(key + i) % KIN_ENTRIES];
		uint64_t found = __atomic_load_n(&e->key, __ATOMIC_ACQUIRE);

		if (found == key)
			return e;
		if (found == 0) {
			if (!insert)
				return NULL;
			if (__atomic_compare_exchange_n(&e->key, &found, key, false, __ATOMIC_ACQ_REL,
			                                __ATOMIC_ACQUIRE) ||
			    found == key)
				return e;
		}
	}
	if (!insert)
		return NULL;
	/* Full neighbourhood: the home entry is evicted and reused. */
	struct kin_entry *e = &t[key % KIN_ENTRIES];

	clear(e);
	__atomic_store_n(&e->key, key, __ATOMIC_RELEASE);
	return e;
}

struct kin kin_of(const void *handle, const struct cost_shape *shape, int device)
{
	uint64_t threads = 1;

	if (!handle || !shape || shape->block[0] == 0) /* only copies and the oldest launch calls give no block */
		return (struct kin){ 0 };
	for (int i = 0; i < 3; i++)
		if (__builtin_mul_overflow(threads, (uint64_t)shape->grid[i] * shape->block[i], &threads))
			threads = UINT64_MAX;
	return (struct kin){ .function = cost_key(handle, NULL, device), .threads = threads ? threads : 1 };
}

static uint64_t octave_key(const struct kin *kin)
{
	uint64_t key = gate_mix(kin->function + 1 + (63u - (unsigned)__builtin_clzll(kin->threads)));

	return key ? key : 1;
}

static uint64_t by_size_ns(const struct kin_entry *of, const struct kin *kin)
{
	uint64_t mean_ns = __atomic_load_n(&of->cost_ns, __ATOMIC_RELAXED);
	double scaled_ns = (double)__atomic_load_n(&of->thread_fs, __ATOMIC_RELAXED) * 1e-6 * (double)kin->threads;

	return scaled_ns > (double)mean_ns ? scaled_ns < 1e18 ? (uint64_t)scaled_ns : UINT64_C(1000000000000000000)
	                                   : mean_ns;
}

static bool is_wary(const struct kin_entry *e)
{
	return __atomic_load_n(&e->wary, __ATOMIC_RELAXED) > 0;
}

struct kin_price kin_price(const struct kin *kin)
{
	struct kin_entry *e;

	if (!kin->function)
		return (struct kin_price){ 0 };
	if ((e = probe(octave_key(kin), false)) && __atomic_load_n(&e->cost_ns, __ATOMIC_RELAXED))
		return (struct kin_price){ .ns = is_wary(e) ? 0 : __atomic_load_n(&e->cost_ns, __ATOMIC_RELAXED),
			                   .near = true };
	if ((e = probe(kin->function, false)) && !is_wary(e))
		return (struct kin_price){ .ns = by_size_ns(e, kin) };
	return (struct kin_price){ 0 };
}

static void add(struct kin_entry *e, uint64_t sample_ns)
{
	struct gate_estimate estimate = {
		.cost_ns = __atomic_load_n(&e->cost_ns, __ATOMIC_RELAXED),
		.samples = __atomic_load_n(&e->samples, __ATOMIC_RELAXED),
		.wary = __atomic_load_n(&e->wary, __ATOMIC_RELAXED),
	};

	estimate = gate_estimate_after(estimate, sample_ns);
	__atomic_store_n(&e->cost_ns, estimate.cost_ns, __ATOMIC_RELAXED);
	__atomic_store_n(&e->samples, estimate.samples, __ATOMIC_RELAXED);
	__atomic_store_n(&e->wary, estimate.wary, __ATOMIC_RELAXED);
}

/* Sizes explain the times of a function's shapes, so a jump of their mean proves nothing. What counts is a time far
 * above the price that its size would have had. */
static void add_to_function(struct kin_entry *of, const struct kin *kin, uint64_t sample_ns, bool first_of_octave)
{
	uint32_t wary = __atomic_load_n(&of->wary, __ATOMIC_RELAXED);
	uint64_t known_ns = by_size_ns(of, kin), fs = __atomic_load_n(&of->thread_fs, __ATOMIC_RELAXED);
	double sample_fs = (double)sample_ns * 1e6 / (double)kin->threads;

	if (first_of_octave && known_ns && sample_ns / 4 > known_ns && sample_ns > GATE_WARY_NS)
		wary = GATE_WARY_LAUNCHES;
	else if (wary)
		wary--;
	fs = fs ? (uint64_t)((double)fs + (sample_fs - (double)fs) / 16) : (uint64_t)sample_fs;
	add(of, sample_ns);
	__atomic_store_n(&of->thread_fs, fs, __ATOMIC_RELAXED);
	__atomic_store_n(&of->wary, wary, __ATOMIC_RELAXED);
}

void kin_learn(const struct kin *kin, uint64_t sample_ns)
{
	struct kin_entry *of, *octave;

	if (!kin->function || !(octave = probe(octave_key(kin), true)) || !(of = probe(kin->function, true)))
		return;
	add_to_function(of, kin, sample_ns, !__atomic_load_n(&octave->cost_ns, __ATOMIC_RELAXED));
	add(octave, sample_ns);
}

void kin_learn_shared(const struct kin *kin, uint64_t upper_ns)
{
	uint64_t known_ns = kin_price(kin).ns;
	struct kin_entry *octave;

	if (!known_ns || !(octave = probe(octave_key(kin), true)))
		return;
	uint32_t bounds = __atomic_load_n(&octave->bounds, __ATOMIC_RELAXED) + 1;
	uint32_t far = bounds > 1 ? __atomic_load_n(&octave->far, __ATOMIC_RELAXED) : 0;
	uint64_t least_ns = bounds > 1 ? __atomic_load_n(&octave->least_ns, __ATOMIC_RELAXED) : UINT64_MAX;

	far += upper_ns / 4 > known_ns && upper_ns > GATE_WARY_NS;
	least_ns = upper_ns < least_ns ? upper_ns : least_ns;
	__atomic_store_n(&octave->far, far, __ATOMIC_RELAXED);
	__atomic_store_n(&octave->least_ns, least_ns, __ATOMIC_RELAXED);
	__atomic_store_n(&octave->bounds, bounds < JUDGE_BOUNDS ? bounds : 0, __ATOMIC_RELAXED);
	if (bounds < JUDGE_BOUNDS)
		return;
	if (least_ns > known_ns)
		kin_learn(kin, least_ns);
	else if (far >= JUDGE_FAR)
		__atomic_store_n(&octave->wary, JUDGE_WARY, __ATOMIC_RELAXED);
}

void kin_forget_all(void)
{
	struct kin_entry *t = __atomic_load_n(&table, __ATOMIC_ACQUIRE);

	for (unsigned i = 0; t && i < KIN_ENTRIES; i++)
		if (__atomic_load_n(&t[i].key, __ATOMIC_RELAXED))
			clear(&t[i]);
}

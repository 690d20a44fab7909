/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cost of a launch: one table per process, from (function, shape, device) or graph exec to nanoseconds of GPU time.
 *
 * Read on the launch path, so it is a fixed open-addressed array of atomics with no lock: a lost update costs one
 * sample, a reused entry one wrong estimate that the next sample corrects. Mapped on first use, because a megabyte of
 * BSS would make the library fail to load under a tight RLIMIT_AS.
 */
#ifndef SLUICE_COST_H
#define SLUICE_COST_H

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

#define COST_SAMPLE_FIRST 8   /* first launches of a new shape: timed, and not queued in large numbers */
#define COST_DEFAULT_NS 20000 /* a launch that was not timed yet; corrected by its first sample */

struct cost_shape {
	uint32_t grid[3];
	uint32_t block[3];
	uint32_t shared_bytes;
};

struct cost_entry {
	uint64_t key;     /* 0 = free */
	uint64_t cost_ns; /* 0 = never timed */
	uint16_t samples; /* taken while no other process was on the GPU; saturating */
	uint16_t lent;    /* cost_ns is the price of other shapes of the function: none of its own was timed */
	uint16_t wary;    /* launches still to be timed one by one */
	uint16_t tries;   /* launches timed, whether or not the time was usable; saturating */
	uint64_t pass;    /* for the launch path, with the key in it: cost_pass_ns() */
};

static_assert(sizeof(struct cost_entry) == 32, "never across two cache lines");

#define COST_NO_PASS UINT64_MAX

/* The cost of the shape with this key while no launch of it is due for timing, else more than any credit: COST_NO_PASS,
 * or the difference of two keys where the entry is another shape's by now. So the launch path reads one word for key and
 * cost, and compares once. */
static inline uint64_t cost_pass_ns(const struct cost_entry *entry, uint64_t key)
{
	return __atomic_load_n(&entry->pass, __ATOMIC_RELAXED) ^ key;
}

/* True: timed often enough to be queued by its cost. */
static inline bool cost_is_proven(const struct cost_entry *entry)
{
	return __atomic_load_n(&entry->tries, __ATOMIC_RELAXED) >= COST_SAMPLE_FIRST;
}

/* True: its cost is no time of its own yet. */
static inline bool cost_is_lent(const struct cost_entry *entry)
{
	return __atomic_load_n(&entry->lent, __ATOMIC_RELAXED) != 0;
}

/* Never 0. Two different launches share a key, and so an estimate, with probability 2^-64. */
uint64_t cost_key(const void *handle, const struct cost_shape *shape, int device);
/* Find or make the entry; NULL only when the table cannot be mapped. */
struct cost_entry *cost_entry(uint64_t key);
/* Find only. */
struct cost_entry *cost_lookup(uint64_t key);
/* A shape without a time gets the price of its kin (kin.h), and is timed at so many launches instead of
 * COST_SAMPLE_FIRST. */
void cost_lend(struct cost_entry *entry, uint64_t price_ns, uint32_t timed);
/* A launch was timed, with or without a usable result. */
void cost_tried(struct cost_entry *entry);
/* Feed one measured launch. `exact`: no other process could have run meanwhile, or its part is subtracted. Otherwise
 * the time is an upper bound, used while there is no better value or when it is lower. */
void cost_learn(struct cost_entry *entry, uint64_t sample_ns, bool exact);
/* The work behind a key changed (graph update): keep the estimate, time it again. */
void cost_relearn(uint64_t key);
/* Handles may be reused (module or library unloaded): time all shapes again. */
void cost_relearn_all(void);

#endif

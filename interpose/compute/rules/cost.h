/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a launch costs: one table per process, from (function, shape, device) or graph exec to nanoseconds of GPU time.
 *
 * Read on the launch path, so it is a fixed open-addressed array of atomics with no lock: a lost update costs one
 * sample, a reused entry one wrong estimate that the next sample repairs. Mapped on first use, because a megabyte of
 * BSS would make the library fail to load under a tight RLIMIT_AS.
 */
#ifndef SLUICE_COST_H
#define SLUICE_COST_H

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

#define COST_SAMPLE_FIRST 8   /* launches of a new shape that are timed, and not queued by the dozen */
#define COST_DEFAULT_NS 20000 /* a launch nobody has timed yet; corrected as soon as its first sample is in */

struct cost_shape {
	uint32_t grid[3];
	uint32_t block[3];
	uint32_t shared_bytes;
};

struct cost_entry {
	uint64_t key;     /* 0 = free */
	uint64_t cost_ns; /* 0 = never timed */
	uint32_t samples; /* taken while nobody else was on the GPU */
	uint32_t wary;    /* launches still to be timed one by one */
	uint32_t tries;   /* launches timed, with or without a use, saturating */
	uint32_t
		pass_ns; /* for the launch path alone: its cost while no launch is to be timed for its own sake, else 0 */
};

static_assert(sizeof(struct cost_entry) == 32, "never across two cache lines");

/* Timed often enough to be queued by what it costs. */
static inline bool cost_is_proven(const struct cost_entry *entry)
{
	return __atomic_load_n(&entry->tries, __ATOMIC_RELAXED) >= COST_SAMPLE_FIRST;
}

/* Never 0. Different launches may share a key with probability 2^-64 a pair: then they share an estimate. */
uint64_t cost_key(const void *handle, const struct cost_shape *shape, int device);
/* Find or make the entry; NULL only when the table cannot be mapped. */
struct cost_entry *cost_entry(uint64_t key);
/* Find only. */
struct cost_entry *cost_lookup(uint64_t key);
/* A launch was timed, whatever came of it. */
void cost_tried(struct cost_entry *entry);
/* Feed one measured launch. `exact`: nobody else could have run meanwhile, or their part is taken out. Otherwise it is an
 * upper bound, used while nothing better is known or when it is lower. */
void cost_learn(struct cost_entry *entry, uint64_t sample_ns, bool exact);
/* The work behind a key changed (graph update): keep the estimate, time it anew. */
void cost_relearn(uint64_t key);
/* Handles may be reused (module or library unloaded): time everything anew. */
void cost_relearn_all(void);

#endif

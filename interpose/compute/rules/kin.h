/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The price of a launch shape that was never timed, from other shapes of its function: one table per process, like
 * cost.h. Programs with changing input sizes launch the same functions in ever new shapes.
 *
 * Per function and octave of threads (grid times block) there is a mean; per function the mean of all shapes and the
 * time per thread. A shape in an octave without a mean gets the higher of the last two: for a function whose time grows
 * with its threads, but at most in proportion, that is not below the truth.
 */
#ifndef SLUICE_KIN_H
#define SLUICE_KIN_H

#include <stdbool.h>
#include <stdint.h>

#include "interpose/compute/rules/cost.h"

/* A function on a device, and the size of one launch. */
struct kin {
	uint64_t function; /* 0 = none: a graph, or a copy */
	uint64_t threads;  /* of the whole grid, saturating */
};

struct kin_price {
	uint64_t ns; /* 0 = unknown: never timed, or times of the function's shapes that no size explains */
	bool near;   /* shapes of the same octave were timed */
};

struct kin kin_of(const void *handle, const struct cost_shape *shape, int device);
struct kin_price kin_price(const struct kin *kin);
/* Feed the time of one launch of a new shape, of which no other process can have had a part. */
void kin_learn(const struct kin *kin, uint64_t sample_ns);
/* Feed a time in which other grants may have had a part: an upper bound. A single one proves nothing, but if all of the
 * last few are above the price, or many far above, the price is wrong. */
void kin_learn_shared(const struct kin *kin, uint64_t upper_ns);
/* Handles may be reused (module or library unloaded). */
void kin_forget_all(void);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Estimates the cost of a context switch from measured times that contain one: pure, see switches.c. */
#ifndef SLUICE_SWITCH_H
#define SLUICE_SWITCH_H

#include <stdbool.h>
#include <stdint.h>

#define SWITCH_SAMPLES 16
#define SWITCH_RANK 4                   /* the fourth lowest of them counts */
#define SWITCH_LEAST_NS UINT32_C(20000) /* a shorter time has no switch in it: the neighbour was idle */
#define SWITCH_MOST_NS UINT32_C(2000000)

/* Ring buffer of the last times. A neighbour's last launch makes a time too long, often in half of the windows; an idle
 * neighbour may leave only a part of a switch, rarely. So a low time counts, but not the lowest. */
struct switch_samples {
	uint32_t count; /* ever */
	uint32_t ns[SWITCH_SAMPLES];
};

/* Add a time; returns the estimated cost, 0 = not known yet. */
static inline uint32_t switch_cost_after(struct switch_samples *s, uint64_t sample_ns)
{
	uint32_t sorted[SWITCH_SAMPLES];

	if (sample_ns >= SWITCH_LEAST_NS && sample_ns <= SWITCH_MOST_NS)
		s->ns[s->count++ % SWITCH_SAMPLES] = (uint32_t)sample_ns;
	if (s->count < SWITCH_SAMPLES)
		return 0;
	if (s->count > UINT32_MAX - SWITCH_SAMPLES)
		s->count = SWITCH_SAMPLES + s->count % SWITCH_SAMPLES;
	for (unsigned i = 0; i < SWITCH_SAMPLES; i++) {
		unsigned at = i;

		for (; at > 0 && sorted[at - 1] > s->ns[i]; at--)
			sorted[at] = sorted[at - 1];
		sorted[at] = s->ns[i];
	}
	return sorted[SWITCH_RANK - 1];
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Arithmetic on words that other threads and processes change at the same time. */
#ifndef SLUICE_WORDS_H
#define SLUICE_WORDS_H

#include <stdint.h>

#include "interpose/compute/rules/gate.h"

static inline void add64(uint64_t *word, uint64_t value)
{
	__atomic_fetch_add(word, value, __ATOMIC_RELAXED);
}

/* Subtract without passing zero: the words are shared with corrections and with a daemon that may zero them. */
static inline void take64(uint64_t *word, uint64_t value)
{
	uint64_t old = __atomic_load_n(word, __ATOMIC_RELAXED);

	while (!__atomic_compare_exchange_n(word, &old, old > value ? old - value : 0, true, __ATOMIC_RELAXED,
	                                    __ATOMIC_RELAXED))
		;
}

/* Move a clock that restarts at `now` when it fell behind (GCRA); returns its value before the move. */
static inline uint64_t draw(uint64_t *tat, uint64_t now_ns, uint64_t price_ns)
{
	uint64_t old = __atomic_load_n(tat, __ATOMIC_RELAXED);

	while (!__atomic_compare_exchange_n(tat, &old, gate_tat_after_ns(old, now_ns, price_ns), true, __ATOMIC_RELAXED,
	                                    __ATOMIC_RELAXED))
		;
	return old;
}

#endif

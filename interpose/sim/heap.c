/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs, bins and boundary marks.
 */
#define _GNU_SOURCE
#include "interpose/sim/heap.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

enum { FREE = 1, FIRST = 2, LAST = 4, PREV_FREE = 8 };

static void *sparse(uint64_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

int heap_space_init(struct heap_space *s, uint64_t units)
{
	s->run = sparse(units * sizeof(*s->run));
	s->start = sparse((units / 64 + 1) * sizeof(*s->start));
	return s->run && s->start ? 0 : -ENOMEM;
}

void heap_init(struct heap *h, struct heap_space *s)
{
	h->space = s;
	memset(h->map, 0, sizeof(h->map));
	memset(h->bin, 0xff, sizeof(h->bin));
}

/* Four bins per power of two: a run of `units` hangs in the bin whose lower bound it reaches. */
static unsigned bin_of(uint32_t units)
{
	unsigned log = 31u - (unsigned)__builtin_clz(units);

	return log < 2 ? units : log * 4 + ((units >> (log - 2)) & 3);
}

static void set_start(struct heap_space *s, uint32_t unit)
{
	s->start[unit / 64] |= 1ull << (unit % 64);
}

static void clear_start(struct heap_space *s, uint32_t unit)
{
	s->start[unit / 64] &= ~(1ull << (unit % 64));
}

static void hang(struct heap *h, uint32_t unit)
{
	struct heap_run *run = h->space->run, *r = &run[unit];
	unsigned bin = bin_of(r->units);

	r->flags |= FREE;
	r->prev = HEAP_NIL;
	r->next = h->bin[bin];
	if (r->next != HEAP_NIL)
		run[r->next].prev = unit;
	h->bin[bin] = unit;
	h->map[bin / 64] |= 1ull << (bin % 64);
	run[unit + r->units - 1].foot = unit;
	if (!(r->flags & LAST))
		run[unit + r->units].flags |= PREV_FREE;
}

static void unhang(struct heap *h, uint32_t unit)
{
	struct heap_run *run = h->space->run, *r = &run[unit];
	unsigned bin = bin_of(r->units);

	if (r->prev != HEAP_NIL)
		run[r->prev].next = r->next;
	else
		h->bin[bin] = r->next;
	if (r->next != HEAP_NIL)
		run[r->next].prev = r->prev;
	if (h->bin[bin] == HEAP_NIL)
		h->map[bin / 64] &= ~(1ull << (bin % 64));
	r->flags &= (uint16_t)~FREE;
	if (!(r->flags & LAST))
		run[unit + r->units].flags &= (uint16_t)~PREV_FREE;
}

void heap_add(struct heap *h, uint32_t first, uint32_t units)
{
	h->space->run[first] = (struct heap_run){ .units = units, .flags = FIRST | LAST };
	set_start(h->space, first);
	hang(h, first);
}

/* The first bin at or above `bin` that holds a run. */
static uint32_t first_hung(const struct heap *h, unsigned bin)
{
	uint64_t here = bin < HEAP_BINS ? h->map[bin / 64] & ~0ull << (bin % 64) : 0;

	if (here)
		return h->bin[bin / 64 * 64 + (unsigned)__builtin_ctzll(here)];
	for (unsigned i = bin / 64 + 1; i < HEAP_BINS / 64; i++)
		if (h->map[i])
			return h->bin[i * 64 + (unsigned)__builtin_ctzll(h->map[i])];
	return HEAP_NIL;
}

uint32_t heap_alloc(struct heap *h, uint32_t units)
{
	struct heap_run *run = h->space->run;
	unsigned bin = bin_of(units);
	uint32_t unit = h->bin[bin];

	/* Runs in the own bin may be too short: look at a few, then take a bin where all are long enough. */
	for (unsigned n = 0; unit != HEAP_NIL && run[unit].units < units; n++)
		unit = n < 8 ? run[unit].next : HEAP_NIL;
	if (unit == HEAP_NIL)
		unit = first_hung(h, bin + 1);
	if (unit == HEAP_NIL) /* the rest of the own bin is the last hope */
		for (unit = h->bin[bin]; unit != HEAP_NIL && run[unit].units < units;)
			unit = run[unit].next;
	if (unit == HEAP_NIL)
		return HEAP_NIL;
	unhang(h, unit);
	if (run[unit].units > units) {
		uint32_t rest = unit + units;

		run[rest] = (struct heap_run){ .units = run[unit].units - units,
			                       .flags = run[unit].flags & LAST };
		run[unit].units = units;
		run[unit].flags &= (uint16_t)~LAST;
		set_start(h->space, rest);
		hang(h, rest);
	}
	run[unit].bytes = 0;
	return unit;
}

uint32_t heap_free(struct heap *h, uint32_t unit, bool *ret_whole)
{
	struct heap_run *run = h->space->run;
	uint32_t next = unit + run[unit].units;

	if (!(run[unit].flags & LAST) && (run[next].flags & FREE)) {
		unhang(h, next);
		run[unit].units += run[next].units;
		run[unit].flags |= run[next].flags & LAST;
		clear_start(h->space, next);
	}
	if (!(run[unit].flags & FIRST) && (run[unit].flags & PREV_FREE)) {
		uint32_t before = run[unit - 1].foot;

		unhang(h, before);
		run[before].units += run[unit].units;
		run[before].flags |= run[unit].flags & LAST;
		clear_start(h->space, unit);
		unit = before;
	}
	hang(h, unit);
	*ret_whole = (run[unit].flags & (FIRST | LAST)) == (FIRST | LAST);
	return unit;
}

void heap_remove(struct heap *h, uint32_t first)
{
	unhang(h, first);
	clear_start(h->space, first);
}

uint32_t heap_find(const struct heap_space *s, uint32_t unit)
{
	uint32_t word = unit / 64;
	uint64_t here = s->start[word] & (~0ull >> (63 - unit % 64));

	while (!here) {
		if (word == 0)
			return HEAP_NIL;
		here = s->start[--word];
	}
	unit = word * 64 + 63 - (uint32_t)__builtin_clzll(here);
	return s->run[unit].flags & FREE ? HEAP_NIL : unit;
}

uint32_t heap_next(const struct heap_space *s, uint32_t unit, uint32_t end)
{
	while (unit < end) {
		uint64_t here = s->start[unit / 64] & ~0ull << (unit % 64);

		if (here) {
			unit = unit / 64 * 64 + (uint32_t)__builtin_ctzll(here);
			if (unit < end && !(s->run[unit].flags & FREE))
				return unit;
			unit++;
		} else {
			unit = (unit / 64 + 1) * 64;
		}
	}
	return HEAP_NIL;
}

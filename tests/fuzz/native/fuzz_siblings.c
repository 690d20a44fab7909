/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any counters in the lines of a grant's other processes: they delay their reader by a bounded time, whatever their
 * values and however they jump from round to round.
 *
 * Input: the first byte is the number of processes, the second the index of ours; then readings of 24 bytes, one for
 * each process and round, with 8 bytes of time before each round.
 */
#include <stdlib.h>
#include <string.h>

#include "interpose/compute/rules/fair.h"

#define MOST 8

static void expect(int truth)
{
	if (!truth)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fair_account account[MOST];
	struct fair_reading reading[MOST];
	uint64_t now_ns = 1000000000, largest_ns = 0, step_ns;
	uint32_t count, self;
	size_t look;

	if (size < 2)
		return 0;
	count = 1 + data[0] % MOST;
	self = data[1] % count;
	data += 2;
	size -= 2;
	memset(account, 0, sizeof(account));
	look = sizeof(step_ns) + count * sizeof(reading[0]);
	for (; size >= look; size -= look, data += look) {
		uint64_t ahead_ns;

		memcpy(&step_ns, data, sizeof(step_ns));
		memcpy(reading, data + sizeof(step_ns), count * sizeof(reading[0]));
		now_ns += step_ns % 1000000000; /* our own clock always advances */
		ahead_ns = fair_look(account, reading, count, self, now_ns, &largest_ns);
		expect(largest_ns <= (uint64_t)FAIR_LEAD_NS);
		expect(ahead_ns <= (uint64_t)FAIR_LAG_NS + 2 * largest_ns);
		expect(count > 1 || ahead_ns == 0);
	}
	return 0;
}

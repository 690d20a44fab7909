/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arbitrary bytes as a policy page: a page that passes the check can be used, limits and turns included, without a
 * division by zero, a harmful overflow or a read outside of it. The first eight bytes choose the clock.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "interpose/compute/rules/gate.h"
#include "interpose/attach/region.h"

static void expect(int truth)
{
	if (!truth)
		abort();
}

static void follow(const struct sluice_policy_device *d, uint64_t now_ns)
{
	struct gate_window w = { d->lease_origin_ns, d->lease_period_ns, d->lease_quantum_ns, d->switch_ns };
	uint64_t wait_ns = gate_turn_wait_ns(&w, now_ns, d->inflight_ns, d->chunk_ns);
	uint64_t price_ns = gate_price_ns(d->chunk_ns, gate_effective_ppm(d->share_ppm, d->plan_ppm));

	if (gate_window_valid(&w)) {
		expect(wait_ns <= w.period_ns);
		expect(gate_window_left_ns(&w, now_ns) <= w.quantum_ns);
	} else {
		expect(wait_ns == 0);
	}
	expect(gate_tat_after_ns(now_ns, now_ns, price_ns) >= now_ns);
	expect(gate_cap_wait_ns(now_ns, now_ns, d->burst_ns) == 0);
	expect(gate_queue_wait_ns(d->inflight_ns, d->chunk_ns, d->inflight_ns) >= GATE_POLL_NS);
	expect(gate_own_ns(d->chunk_ns, d->lease_quantum_ns, d->active_grants) <= d->chunk_ns);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint64_t now_ns = 0;
	struct sluice_policy *page;
	struct sluice_policy_device device;

	if (size < sizeof(now_ns))
		return 0;
	memcpy(&now_ns, data, sizeof(now_ns));
	data += sizeof(now_ns);
	size -= sizeof(now_ns);
	page = malloc(size ? size : 1);
	if (!page)
		abort();
	memcpy(page, data, size);
	if (sluice_policy_check(page, size, NULL) == 0) {
		expect(memchr(page->driver_path, 0, SLUICE_PATH_BYTES) != NULL);
		expect(memchr(page->nvml_path, 0, SLUICE_PATH_BYTES) != NULL);
		for (uint32_t i = 0; i < page->header.device_count; i++)
			if (sluice_policy_read_device(page, i, &device) == 0)
				follow(&device, now_ns);
	}
	free(page);
	return 0;
}

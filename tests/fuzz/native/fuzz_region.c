/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A region that a tenant, or a broken daemon, has overwritten: whatever the words contain, readers stay inside it and
 * an allowed reservation keeps to the limit.
 *
 * Input: records of 13 bytes, (file and operation, offset, value). Each writes a word into a good region and then runs
 * one of the read operations.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "interpose/attach/region.h"

#define LIMIT (UINT64_C(64) << 30)

struct record {
	uint8_t what;
	uint32_t offset;
	uint64_t value;
} __attribute__((packed));

static void *fresh(size_t bytes)
{
	void *memory = calloc(1, bytes); /* of the exact size: a read past the end is detected */

	if (!memory)
		abort();
	return memory;
}

static void expect(int truth)
{
	if (!truth)
		abort();
}

static void ask(const struct sluice_policy *policy, struct sluice_usage *usage, const struct record *r)
{
	struct sluice_policy_device device;
	uint32_t slot = (uint32_t)(r->value >> 32), number = (uint32_t)r->value, taken;
	uint64_t before;

	switch (r->what >> 2 & 7) {
	case 0:
		expect(sluice_policy_check(policy, SLUICE_POLICY_BYTES, NULL) <= 0);
		break;
	case 1:
		expect(sluice_usage_check(usage, SLUICE_USAGE_BYTES) <= 0);
		break;
	case 2:
		memset(&device, 0xa5, sizeof(device));
		if (sluice_policy_read_device(policy, number & 31, &device) != 0)
			expect(device.flags == 0xa5a5a5a5);
		break;
	case 3:
		if (sluice_memory_reserve(policy, usage, slot & 511, number & 31, r->value, LIMIT) == 0) {
			expect(sluice_memory_charged(policy, usage, number & 31) <= LIMIT ||
			       !(policy->dir[slot & 255].generation & 1 || usage->slot[slot & 255].self_claim));
			sluice_memory_release(usage, slot & 511, number & 31, r->value);
		}
		break;
	case 4:
		before = (slot & 511) < SLUICE_MAX_SLOTS && (number & 31) < SLUICE_MAX_DEVICES
		                 ? usage->slot[slot & 511].dev[number & 31].charged_bytes
		                 : 0;
		sluice_memory_release(usage, slot & 511, number & 31, r->value);
		if ((slot & 511) < SLUICE_MAX_SLOTS && (number & 31) < SLUICE_MAX_DEVICES)
			expect(usage->slot[slot & 511].dev[number & 31].charged_bytes <= before);
		break;
	case 5:
		if (sluice_slot_claim(policy, usage, number, r->value, &taken) == 0)
			expect(taken < SLUICE_MAX_SLOTS && !(policy->dir[taken].generation & 1));
		break;
	case 6:
		if (sluice_slot_inherit(policy, usage, number, r->value, slot, &taken) == 0)
			expect(taken < SLUICE_MAX_SLOTS && !(policy->dir[taken].generation & 1));
		sluice_slot_forget_before(usage, r->value, slot, number);
		break;
	default:
		(void)sluice_memory_charged(policy, usage, number);
		break;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct sluice_policy *draft = fresh(sizeof(*draft)), *policy = fresh(sizeof(*policy));
	struct sluice_usage *usage = fresh(sizeof(*usage));

	draft->header.device_count = 3;
	for (int i = 0; i < 3; i++)
		draft->dev[i].memory_limit_bytes = LIMIT;
	expect(sluice_policy_publish(policy, draft) == 0);
	sluice_usage_format(usage);
	for (; size >= sizeof(struct record); size -= sizeof(struct record), data += sizeof(struct record)) {
		struct record r;
		size_t bytes;

		memcpy(&r, data, sizeof(r));
		bytes = r.what & 1 ? sizeof(*policy) : sizeof(*usage);
		if (r.what & 2) {
			uint8_t *at = (r.what & 1 ? (uint8_t *)policy : (uint8_t *)usage) + r.offset % (bytes / 8) * 8;

			memcpy(at, &r.value, sizeof(r.value));
		}
		ask(policy, usage, &r);
	}
	free(draft);
	free(policy);
	free(usage);
	return 0;
}

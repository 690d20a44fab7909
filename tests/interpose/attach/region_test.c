/* SPDX-License-Identifier: Apache-2.0 */
/*
 * region.c alone: publishing and checking, the seqlock against a writer, slots, hostile contents, and
 * reserve-then-verify with threads. Run plain and under the sanitizers.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <string.h>

#include "interpose/attach/region.h"
#include "tests/interpose/check.h"

static struct sluice_policy policy, draft;
static struct sluice_usage usage;

#define LIMIT (UINT64_C(1) << 30)

static void fresh(uint32_t devices)
{
	memset(&policy, 0, sizeof(policy));
	memset(&draft, 0, sizeof(draft));
	memset(&usage, 0, sizeof(usage));
	draft.header.device_count = devices;
	for (uint32_t i = 0; i < devices; i++) {
		draft.dev[i].memory_limit_bytes = LIMIT;
		draft.dev[i].flags = SLUICE_FLAG_ENFORCE_MEMORY;
		memset(draft.dev[i].gpu_uuid, (int)i + 1, 16);
	}
	CHECK_EQUAL(sluice_policy_publish(&policy, &draft), 0);
	sluice_usage_format(&usage);
}

static void test_publish(void)
{
	uint8_t boot[16] = { 1 }, other[16] = { 2 };

	memset(&policy, 0, sizeof(policy));
	memset(&draft, 0, sizeof(draft));
	CHECK_EQUAL(sluice_policy_check(&policy, sizeof(policy), NULL), -EAGAIN);
	CHECK_EQUAL(sluice_policy_publish(&policy, &draft), -EINVAL); /* no device */
	draft.header.device_count = SLUICE_MAX_DEVICES + 1;
	CHECK_EQUAL(sluice_policy_publish(&policy, &draft), -EINVAL);
	draft.header.device_count = 1;
	memset(draft.driver_path, 'x', sizeof(draft.driver_path));
	CHECK_EQUAL(sluice_policy_publish(&policy, &draft), -ENAMETOOLONG);
	memset(draft.driver_path, 0, sizeof(draft.driver_path));
	memcpy(draft.header.boot_id, boot, sizeof(boot));
	CHECK_EQUAL(sluice_policy_publish(&policy, &draft), 0);
	CHECK_EQUAL(sluice_policy_publish(&policy, &draft), -EEXIST);
	CHECK_EQUAL(sluice_policy_check(&policy, sizeof(policy), NULL), 0);
	CHECK_EQUAL(sluice_policy_check(&policy, sizeof(policy), boot), 0);
	CHECK_EQUAL(sluice_policy_check(&policy, sizeof(policy), other), -ESTALE);
	CHECK_EQUAL(sluice_policy_check(&policy, sizeof(policy) - 1, NULL), -EBADMSG);
}

/* Every header word, one at a time, with values that an attacker might write. */
static void test_hostile_headers(void)
{
	static const uint64_t values[] = { 0, 1, 16, 17, 255, 257, UINT16_MAX, UINT32_MAX, UINT64_MAX };
	int refused = 0;

	for (size_t at = 0; at < 32; at += 4) {
		for (size_t v = 0; v < sizeof(values) / sizeof(values[0]); v++) {
			uint32_t value = (uint32_t)values[v], was;

			fresh(1);
			memcpy(&was, (char *)&policy + at, 4);
			memcpy((char *)&policy + at, &value, 4);
			int r = sluice_policy_check(&policy, sizeof(policy), NULL);

			if (r == 0) /* only the minor version and a smaller number of devices may differ */
				CHECK((at == 8 && (value & 0xffff) == SLUICE_REGION_MAJOR) || value == was ||
				      (at == offsetof(struct sluice_policy_header, device_count) && value >= 1 &&
				       value <= SLUICE_MAX_DEVICES));
			else
				refused++;
		}
	}
	CHECK(refused > 50);
	fresh(1);
	policy.nvml_path[SLUICE_PATH_BYTES - 1] = 'x';
	CHECK_EQUAL(sluice_policy_check(&policy, sizeof(policy), NULL), -EBADMSG);

	fresh(1);
	CHECK_EQUAL(sluice_usage_check(&usage, sizeof(usage)), 0);
	CHECK_EQUAL(sluice_usage_check(&usage, sizeof(usage) - 1), -EBADMSG);
	usage.header.major = 2;
	CHECK_EQUAL(sluice_usage_check(&usage, sizeof(usage)), -EPROTO);
	usage.header.magic++;
	CHECK_EQUAL(sluice_usage_check(&usage, sizeof(usage)), -EBADMSG);
}

/* Whatever a tenant writes into its own page, no read goes out of bounds and no sum wraps to a small one. */
static void test_hostile_usage(void)
{
	uint64_t generation;
	uint32_t slot;

	fresh(2);
	CHECK_EQUAL(sluice_policy_own_slot(&policy, 0, &(struct sluice_policy_entry){ .host_pid = 1 }, &generation), 0);
	usage.header.claim_high = UINT32_MAX;
	for (int i = 0; i < SLUICE_MAX_SLOTS; i++) {
		usage.slot[i].self_claim = UINT64_MAX;
		usage.slot[i].dev[0].charged_bytes = UINT64_MAX - 5;
	}
	CHECK_EQUAL(sluice_memory_charged(&policy, &usage, 0), UINT64_MAX);
	CHECK_EQUAL(sluice_memory_charged(&policy, &usage, 1), 0);
	CHECK_EQUAL(sluice_memory_charged(&policy, &usage, SLUICE_MAX_DEVICES), 0);
	CHECK_EQUAL(sluice_memory_reserve(&policy, &usage, 0, 0, 1, LIMIT), -ENOMEM);
	CHECK_EQUAL(sluice_slot_claim(&policy, &usage, 7, 7, &slot), -ENOSPC);
	CHECK_EQUAL(sluice_memory_reserve(&policy, &usage, SLUICE_MAX_SLOTS, 0, 1, LIMIT), -EINVAL);
	CHECK_EQUAL(sluice_memory_reserve(&policy, &usage, 0, SLUICE_MAX_DEVICES, 1, LIMIT), -EINVAL);
	sluice_memory_release(&usage, SLUICE_MAX_SLOTS, 0, 1);
	sluice_memory_release(&usage, 0, SLUICE_MAX_DEVICES, 1);
}

static void test_limits(void)
{
	struct sluice_policy_device d, copy;
	uint64_t epoch;

	fresh(2);
	epoch = policy.control.epoch;
	CHECK_EQUAL(sluice_policy_read_device(&policy, 1, &d), 0);
	CHECK_EQUAL(d.memory_limit_bytes, LIMIT);
	d.memory_limit_bytes = 5;
	d.lease_period_ns = 99; /* of line B: set_limits does not write it */
	CHECK_EQUAL(sluice_policy_set_limits(&policy, 1, &d), 0);
	CHECK_EQUAL(sluice_policy_set_limits(&policy, 2, &d), -EINVAL);
	CHECK_EQUAL(sluice_policy_read_device(&policy, 1, &copy), 0);
	CHECK_EQUAL(copy.memory_limit_bytes, 5);
	CHECK_EQUAL(copy.lease_period_ns, 0);
	CHECK(policy.control.epoch > epoch);
	CHECK_EQUAL(sluice_policy_set_turn(&policy, 1, &d, true), 0);
	CHECK_EQUAL(sluice_policy_read_device(&policy, 1, &copy), 0);
	CHECK_EQUAL(copy.lease_period_ns, 99);

	/* a daemon that died in mid-write: readers keep their last copy, the next daemon repairs the page */
	policy.control.seq |= 1;
	copy.memory_limit_bytes = 77;
	CHECK_EQUAL(sluice_policy_read_device(&policy, 1, &copy), -EAGAIN);
	CHECK_EQUAL(copy.memory_limit_bytes, 77);
	CHECK_EQUAL(sluice_policy_recover(&policy, &draft), 0);
	CHECK_EQUAL(sluice_policy_read_device(&policy, 1, &copy), 0);
	CHECK_EQUAL(copy.memory_limit_bytes, LIMIT);
	policy.header.magic = 0;
	CHECK_EQUAL(sluice_policy_recover(&policy, &draft), -EBADMSG);
}

static void test_slots(void)
{
	struct sluice_policy_entry entry = { .host_pid = 10, .ns_pid = 1, .starttime = 5 };
	uint64_t first, second;
	uint32_t slot;

	fresh(1);
	CHECK_EQUAL(sluice_policy_own_slot(&policy, 3, &entry, &first), 0);
	CHECK_EQUAL(first & 1, 1);
	CHECK_EQUAL(sluice_policy_own_slot(&policy, 3, &entry, &second), -EBUSY);
	CHECK_EQUAL(sluice_policy_own_slot(&policy, SLUICE_MAX_SLOTS, &entry, &second), -EINVAL);
	CHECK_EQUAL(policy.control.slot_high, 4);
	sluice_policy_set_population(&policy, 1, 0); /* would hide slot 3 */
	CHECK_EQUAL(policy.control.slot_high, 4);
	CHECK_EQUAL(sluice_memory_reserve(&policy, &usage, 3, 0, 100, LIMIT), 0);
	CHECK_EQUAL(sluice_memory_charged(&policy, &usage, 0), 100);
	CHECK_EQUAL(sluice_policy_free_slot(&policy, 3), 0);
	CHECK_EQUAL(sluice_policy_free_slot(&policy, 3), -ENOENT);
	CHECK_EQUAL(sluice_memory_charged(&policy, &usage, 0), 0); /* dead: not counted any more */
	CHECK_EQUAL(sluice_policy_own_slot(&policy, 3, &entry, &second), 0);
	CHECK(second == first + 2);

	/* without the daemon: never an owned slot, never the same one twice, 255 more and then none */
	for (int i = 0; i < SLUICE_MAX_SLOTS - 1; i++) {
		CHECK_EQUAL(sluice_slot_claim(&policy, &usage, 100 + (uint32_t)i, 1, &slot), 0);
		CHECK(slot != 3);
		CHECK_EQUAL(usage.slot[slot].self_claim >> 32, 100 + i);
	}
	CHECK_EQUAL(sluice_slot_claim(&policy, &usage, 1, 1, &slot), -ENOSPC);
}

/* A process that calls exec: its earlier charges disappear, and its claim is used again. */
static void test_programs_of_one_process(void)
{
	const uint64_t process = 77, before = 1000, now = 2000;
	struct sluice_policy_entry entry = { .host_pid = 10, .ns_pid = 1, .starttime = 5 };
	uint64_t generation;
	uint32_t claimed, slot;

	fresh(2);
	CHECK_EQUAL(sluice_policy_own_slot(&policy, 0, &entry, &generation), 0);
	CHECK_EQUAL(sluice_slot_claim(&policy, &usage, 1, 5, &claimed), 0);
	CHECK_EQUAL(claimed, 1);
	/* 0 and 1: the program before exec; 2: a copy of us in the current one; 3: another process */
	for (uint32_t i = 0; i < 4; i++) {
		usage.slot[i].process = i < 3 ? process : 78;
		usage.slot[i].image = i < 2 ? before : now;
		usage.slot[i].self_claim = i ? UINT64_C(1) << 32 | 1 : 0;
		usage.slot[i].dev[1].charged_bytes = 100;
		usage.slot[i].dev[1].consumed_ns = 9;
		usage.slot[i].dev[1].launches = 4;
	}
	usage.slot[3].image = before;
	/* an unknown identity, of the process or of a slot, matches no slot */
	CHECK_EQUAL(sluice_slot_inherit(&policy, &usage, 1, 0, now, &slot), -ENOENT);
	CHECK_EQUAL(sluice_slot_inherit(&policy, &usage, 1, process, 0, &slot), -ENOENT);
	sluice_slot_forget_before(&usage, 0, now, 9);
	sluice_slot_forget_before(&usage, process, 0, 9);
	CHECK_EQUAL(usage.slot[1].dev[1].charged_bytes, 100);
	/* slot 0 belongs to the daemon; slot 1 is ours */
	CHECK_EQUAL(sluice_slot_inherit(&policy, &usage, 1, process, now, &slot), 0);
	CHECK_EQUAL(slot, 1);
	CHECK_EQUAL(usage.slot[1].image, now);
	CHECK_EQUAL(usage.slot[1].dev[1].charged_bytes, 0);
	CHECK_EQUAL(usage.slot[1].dev[1].completed_ns, 9);
	CHECK_EQUAL(usage.slot[1].dev[1].launches, 4);
	CHECK_EQUAL(sluice_slot_inherit(&policy, &usage, 1, process, now, &slot), -ENOENT);
	usage.slot[1].dev[1].charged_bytes = 50;
	sluice_slot_forget_before(&usage, process, now, 1);
	CHECK_EQUAL(usage.slot[0].dev[1].charged_bytes, 0);
	CHECK_EQUAL(usage.slot[0].dev[1].completed_ns, 9);
	CHECK_EQUAL(usage.slot[1].dev[1].charged_bytes, 50);
	CHECK_EQUAL(usage.slot[2].dev[1].charged_bytes, 100);
	CHECK_EQUAL(usage.slot[3].dev[1].charged_bytes, 100);
	/* a claim on a slot that the daemon has given away meanwhile */
	usage.slot[1].image = before;
	CHECK_EQUAL(sluice_policy_own_slot(&policy, 1, &entry, &generation), 0);
	CHECK_EQUAL(sluice_slot_inherit(&policy, &usage, 1, process, now, &slot), -ENOENT);
}

static void test_reserve(void)
{
	uint64_t generation;

	fresh(1);
	CHECK_EQUAL(sluice_policy_own_slot(&policy, 0, &(struct sluice_policy_entry){ .host_pid = 1 }, &generation), 0);
	CHECK_EQUAL(sluice_policy_own_slot(&policy, 9, &(struct sluice_policy_entry){ .host_pid = 2 }, &generation), 0);
	CHECK_EQUAL(sluice_memory_reserve(&policy, &usage, 0, 0, LIMIT - 10, LIMIT), 0);
	CHECK_EQUAL(sluice_memory_reserve(&policy, &usage, 9, 0, 11, LIMIT), -ENOMEM);
	CHECK_EQUAL(sluice_memory_reserve(&policy, &usage, 9, 0, 10, LIMIT), 0);
	CHECK_EQUAL(sluice_memory_reserve(&policy, &usage, 9, 0, 1, LIMIT), -ENOMEM);
	/* sizes that would wrap the sum and look small */
	CHECK_EQUAL(sluice_memory_reserve(&policy, &usage, 9, 0, UINT64_MAX, UINT64_MAX), -ENOMEM);
	CHECK_EQUAL(sluice_memory_reserve(&policy, &usage, 9, 0, UINT64_MAX - 9, LIMIT), -ENOMEM);
	CHECK_EQUAL(usage.slot[9].dev[0].denied, 4);
	CHECK_EQUAL(usage.slot[9].dev[0].allocs, 1);
	CHECK_EQUAL(usage.slot[9].dev[0].peak_bytes, 10);
	CHECK_EQUAL(usage.slot[9].dev[0].charged_bytes, 10);
	/* a limit lowered below the use refuses, and allows again when enough was freed */
	CHECK_EQUAL(sluice_memory_reserve(&policy, &usage, 0, 0, 1, 100), -ENOMEM);
	sluice_memory_release(&usage, 0, 0, LIMIT - 10);
	CHECK_EQUAL(sluice_memory_reserve(&policy, &usage, 0, 0, 90, 100), 0);
	/* returning more than is held never wraps */
	sluice_memory_release(&usage, 9, 0, 1000);
	CHECK_EQUAL(usage.slot[9].dev[0].charged_bytes, 0);
}

/* --- threads ------------------------------------------------------------------------------------------------------ */

#define THREADS 4
#define ROUNDS 20000

static uint64_t truth; /* the bytes that a driver would have handed out */
static uint64_t highest;
static uint64_t reads; /* consistent reads */
static bool stop;

static void *reserver(void *arg)
{
	uint32_t slot = *(const uint32_t *)arg, seed = slot * 7 + 1;

	for (int i = 0; i < ROUNDS; i++) {
		uint64_t bytes = 1 + (seed = seed * 1664525 + 1013904223) % (LIMIT / 3), now, was;

		if (sluice_memory_reserve(&policy, &usage, slot, 0, bytes, LIMIT) != 0)
			continue;
		now = __atomic_add_fetch(&truth, bytes, __ATOMIC_SEQ_CST);
		was = __atomic_load_n(&highest, __ATOMIC_RELAXED);
		while (was < now &&
		       !__atomic_compare_exchange_n(&highest, &was, now, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
			continue;
		if (i % 16 == 0) /* on a busy machine one thread could finish before the next begins */
			sched_yield();
		__atomic_sub_fetch(&truth, bytes, __ATOMIC_SEQ_CST);
		sluice_memory_release(&usage, slot, 0, bytes);
	}
	return NULL;
}

/* Two threads in each of two slots: the bytes handed out never exceed the limit. */
static void test_reserve_threads(void)
{
	uint32_t slots[THREADS] = { 0, 0, 5, 5 };
	uint64_t generation;
	pthread_t t[THREADS];

	fresh(1);
	CHECK_EQUAL(sluice_policy_own_slot(&policy, 0, &(struct sluice_policy_entry){ .host_pid = 1 }, &generation), 0);
	CHECK_EQUAL(sluice_policy_own_slot(&policy, 5, &(struct sluice_policy_entry){ .host_pid = 2 }, &generation), 0);
	for (int i = 0; i < THREADS; i++)
		CHECK_EQUAL(pthread_create(&t[i], NULL, reserver, &slots[i]), 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(t[i], NULL);
	CHECK(highest <= LIMIT);
	CHECK(highest > LIMIT / 3);
	CHECK_EQUAL(sluice_memory_charged(&policy, &usage, 0), 0);
	CHECK(usage.slot[0].dev[0].allocs + usage.slot[5].dev[0].allocs > 0);
}

static void *reader(void *arg)
{
	struct sluice_policy_device d;

	(void)arg;
	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
		if (sluice_policy_read_device(&policy, 0, &d) != 0)
			continue;
		/* line A is written as a group: all its words carry the same number */
		CHECK_EQUAL(d.burst_ns, d.memory_limit_bytes);
		CHECK_EQUAL(d.chunk_ns, d.memory_limit_bytes);
		CHECK_EQUAL(d.share_ppm, (uint32_t)d.memory_limit_bytes);
		__atomic_fetch_add(&reads, 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

static void test_seqlock_threads(void)
{
	struct sluice_policy_device d = { 0 };
	pthread_t t[2];

	fresh(1);
	CHECK_EQUAL(sluice_policy_set_limits(&policy, 0, &d), 0);
	for (int i = 0; i < 2; i++)
		CHECK_EQUAL(pthread_create(&t[i], NULL, reader, NULL), 0);
	/* until the readers had a turn: on a busy machine they may not have begun by then */
	for (uint32_t i = 1; i < ROUNDS || __atomic_load_n(&reads, __ATOMIC_RELAXED) < ROUNDS; i++) {
		if (i % 256 == 0)
			sched_yield();
		d.memory_limit_bytes = d.burst_ns = d.inflight_ns = d.chunk_ns = i;
		d.share_ppm = i;
		CHECK_EQUAL(sluice_policy_set_limits(&policy, 0, &d), 0);
	}
	__atomic_store_n(&stop, true, __ATOMIC_RELAXED);
	for (int i = 0; i < 2; i++)
		pthread_join(t[i], NULL);
}

int main(void)
{
	test_publish();
	test_hostile_headers();
	test_hostile_usage();
	test_limits();
	test_slots();
	test_programs_of_one_process();
	test_reserve();
	test_reserve_threads();
	test_seqlock_threads();
	puts("ok");
	return 0;
}

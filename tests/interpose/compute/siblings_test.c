/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fairness between the processes of a grant under threads: `siblings_test THREADS ROUNDS`. Half of the threads launch
 * through the gate and half read the lead of this process, while others act as the grant's other processes: they
 * charge, finish, wait, write nonsense into their counters, die and come back. Whatever they do, no lead exceeds the
 * bounds of fair.h; and when they stop, the accounts start afresh and divide the time correctly.
 *
 * The interposer is linked in, so that the sanitizers see it. The region is the one SLUICE_GRANT_DIR names; this
 * process also acts as the daemon.
 */
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>

#include "nativecommon/clock.h"
#include "interpose/compute/rules/fair.h"
#include "interpose/compute/timing/siblings.h"
#include "interpose/driver/driver.h"
#include "interpose/tenant/guest.h"
#include "tests/interpose/check.h"

#define SIBLINGS 5
#define ACTS 4000                                                /* actions of siblings until the end */
#define MOST_AHEAD_NS (uint64_t)(FAIR_LAG_NS + 2 * FAIR_LEAD_NS) /* twice the longest launch that is accepted */

static struct sluice_policy *policy;
static CUcontext primary;
static long rounds;
static uint64_t acts, deaths;
static int stop;

static uint64_t next(uint64_t *seed)
{
	*seed ^= *seed << 13;
	*seed ^= *seed >> 7;
	*seed ^= *seed << 17;
	return *seed;
}

static struct sluice_usage_device *line(uint32_t slot)
{
	return &guest_self()->usage->slot[slot].dev[0];
}

static void set(uint64_t *word, uint64_t value)
{
	__atomic_store_n(word, value, __ATOMIC_RELAXED);
}

static uint64_t get(const uint64_t *word)
{
	return __atomic_load_n(word, __ATOMIC_RELAXED);
}

/* All slots in turn, except our own. */
static uint32_t slot_of(int sibling)
{
	uint32_t slot = (uint32_t)sibling;

	return slot >= guest_slot() ? slot + 1 : slot;
}

static void be_born(uint32_t slot)
{
	struct sluice_policy_entry entry = { .host_pid = 1000 + slot };
	uint64_t generation;

	CHECK_EQUAL(sluice_policy_own_slot(policy, slot, &entry, &generation), 0);
}

static void die(uint32_t slot)
{
	CHECK_EQUAL(sluice_policy_free_slot(policy, slot), 0);
	set(&line(slot)->consumed_ns, 0);
	set(&line(slot)->completed_ns, 0);
	set(&line(slot)->throttled_ns, 0);
	__atomic_fetch_add(&deaths, 1, __ATOMIC_RELAXED);
}

/* Another process of the grant, the only writer of its line. */
static void *sibling(void *arg)
{
	uint32_t slot = slot_of((int)(uintptr_t)arg);
	uint64_t seed = slot * 2654435761u + 7;

	for (unsigned n = 1; !__atomic_load_n(&stop, __ATOMIC_ACQUIRE); n++) {
		struct sluice_usage_device *usage = line(slot);
		uint64_t dice = next(&seed);

		if (n % 200 == 0) {
			die(slot);
			be_born(slot);
		} else if (n % 200 == 50) {
			set(&usage->completed_ns, dice); /* an arbitrary value */
		} else if (n % 200 == 100) {
			set(&usage->consumed_ns, dice % 4 ? get(&usage->consumed_ns) / 2 : dice);
		} else if (dice % 4 < 2) {
			set(&usage->consumed_ns, get(&usage->consumed_ns) + dice % 2000);
		} else if (dice % 4 == 2) {
			set(&usage->completed_ns, get(&usage->consumed_ns));
		} else {
			set(&usage->throttled_ns, get(&usage->throttled_ns) + 1 + dice % 1000000);
		}
		__atomic_fetch_add(&acts, 1, __ATOMIC_RELAXED);
		nanosleep(&(struct timespec){ .tv_nsec = 20000 }, NULL);
	}
	return NULL;
}

static void *launcher(void *arg)
{
	uint64_t seed = (uint64_t)(uintptr_t)arg * 2654435761u + 1;

	CHECK_EQUAL(cuCtxSetCurrent(primary), CUDA_SUCCESS);
	for (long i = 0; i < rounds / 10; i++) /* each chunk of them may have to wait for siblings */
		CHECK_EQUAL(cuLaunchKernel((CUfunction)0x77, 5 + (unsigned)(next(&seed) % 20), 1, 1, 32, 1, 1, 0, NULL,
		                           NULL, NULL),
		            CUDA_SUCCESS);
	CHECK_EQUAL(cuCtxSynchronize(), CUDA_SUCCESS);
	return NULL;
}

static void *asker(void *arg)
{
	struct sluice_usage_device *own = line(guest_slot());

	(void)arg;
	for (long i = 0; i < rounds * 4 || __atomic_load_n(&acts, __ATOMIC_RELAXED) < ACTS; i++) {
		if (i % 64 == 0) { /* a long launch of this process, done at once */
			__atomic_fetch_add(&own->consumed_ns, 1000000, __ATOMIC_RELAXED);
			__atomic_fetch_add(&own->completed_ns, 1000000, __ATOMIC_RELAXED);
		}
		uint64_t ahead_ns = siblings_ahead_ns(0, clock_ns());
		uint32_t busy = siblings_busy(0, 0);

		CHECK(ahead_ns <= MOST_AHEAD_NS);
		CHECK(busy >= 1 && busy <= SIBLINGS + 1);
		CHECK(siblings_exist());
		siblings_work(0); /* not consistent: only the memory accesses are checked here */
	}
	return NULL;
}

/* No other process is left: a few rounds at chosen times. */
static void quiet(void)
{
	struct sluice_usage_device *own = line(guest_slot());
	uint64_t now_ns = clock_ns() + 2 * FAIR_IDLE_NS;

	for (int i = 0; i < SIBLINGS; i++) { /* all of them known before: the first wait of a new one proves nothing */
		set(&line(slot_of(i))->throttled_ns, get(&line(slot_of(i))->throttled_ns) + 1);
		set(&line(slot_of(i))->completed_ns, get(&line(slot_of(i))->consumed_ns));
	}
	set(&own->completed_ns, get(&own->consumed_ns));
	siblings_forget_parent();
	CHECK_EQUAL(siblings_busy(0, 0), 1);
	CHECK_EQUAL(siblings_ahead_ns(0, now_ns), 0); /* the accounts are new: no process has a lead */
	set(&own->consumed_ns, get(&own->consumed_ns) + 50000000);
	CHECK_EQUAL(siblings_ahead_ns(0, now_ns + 1000000), 0); /* no sibling waits */
	set(&line(slot_of(2))->throttled_ns, get(&line(slot_of(2))->throttled_ns) + 1);
	uint64_t ahead_ns = siblings_ahead_ns(0, now_ns + 2000000);

	CHECK(ahead_ns > 0 && ahead_ns <= 50000000);
	CHECK_EQUAL(siblings_ahead_ns(0, now_ns + 3000000 + FAIR_WANTS_NS), 0); /* the sibling has ended */
}

int main(int argc, char **argv)
{
	int threads = argc > 1 ? (int)strtol(argv[1], NULL, 10) : 4;
	pthread_t others[SIBLINGS], own[32];

	rounds = argc > 2 ? strtol(argv[2], NULL, 10) : 2000;
	CHECK(threads >= 1 && threads <= 16);
	policy = map_policy();
	struct sluice_policy_device limits = policy->dev[0];

	limits.share_ppm = 900000;
	limits.active_grants = 1;
	CHECK_EQUAL(sluice_policy_set_limits(policy, 0, &limits), 0);
	sluice_policy_heartbeat(policy, clock_ns());
	CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
	CHECK_EQUAL(cuDevicePrimaryCtxRetain(&primary, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuCtxSetCurrent(primary), CUDA_SUCCESS);
	for (int i = 0; i < SIBLINGS; i++) {
		be_born(slot_of(i));
		CHECK_EQUAL(pthread_create(&others[i], NULL, sibling, (void *)(uintptr_t)i), 0);
	}
	for (int i = 0; i < 2 * threads; i++)
		CHECK_EQUAL(pthread_create(&own[i], NULL, i % 2 ? asker : launcher, (void *)(uintptr_t)(i + 1)), 0);
	for (int i = 0; i < 2 * threads; i++)
		pthread_join(own[i], NULL);
	__atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
	for (int i = 0; i < SIBLINGS; i++)
		pthread_join(others[i], NULL);
	quiet();
	printf("{\"deaths\": %llu}\n", (unsigned long long)deaths);
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SIGKILL at any instruction: `torture KILLS SEED` kills processes that reserve, allocate, free and release in a loop,
 * and acts as the daemon that reaps them. Prints one JSON object; exit status 1 if the limit was ever passed or a
 * charge leaked.
 *
 * The truth (the bytes that a driver would have handed out) is one word per process beside a version, so that a
 * consistent sum can be read while others run: read all, read all again, nothing changed. Every process checks after
 * each allocation; the parent stops all of them from time to time and checks that each one is charged for at least the
 * bytes it has.
 */
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "interpose/attach/region.h"
#include "tests/interpose/check.h"

#define WORKERS 6
#define LIMIT (UINT64_C(1) << 30)

struct shared {
	struct {
		uint64_t version, bytes;
	} truth[SLUICE_MAX_SLOTS];
	uint64_t checks, overshoots, worst_bytes, allocated, denied;
};

static struct sluice_policy *policy;
static struct sluice_usage *usage;
static struct shared *shared;

static uint64_t seed;

static uint64_t next(void)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return seed;
}

static void *map(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	CHECK(p != MAP_FAILED);
	return p;
}

/* False: other processes were too fast for a consistent sum. */
static bool sum_truth(uint64_t *ret_sum)
{
	uint64_t versions[SLUICE_MAX_SLOTS], sum;

	for (int tries = 0; tries < 8; tries++) {
		bool stable = true;

		sum = 0;
		for (int i = 0; i < SLUICE_MAX_SLOTS; i++) {
			versions[i] = __atomic_load_n(&shared->truth[i].version, __ATOMIC_SEQ_CST);
			sum += __atomic_load_n(&shared->truth[i].bytes, __ATOMIC_SEQ_CST);
		}
		for (int i = 0; i < SLUICE_MAX_SLOTS && stable; i++)
			stable = versions[i] % 2 == 0 &&
			         versions[i] == __atomic_load_n(&shared->truth[i].version, __ATOMIC_SEQ_CST);
		if (stable) {
			*ret_sum = sum;
			return true;
		}
	}
	return false;
}

static void set_truth(uint32_t slot, uint64_t bytes)
{
	__atomic_fetch_add(&shared->truth[slot].version, 1, __ATOMIC_SEQ_CST); /* odd: changing */
	__atomic_store_n(&shared->truth[slot].bytes, bytes, __ATOMIC_SEQ_CST);
	__atomic_fetch_add(&shared->truth[slot].version, 1, __ATOMIC_SEQ_CST);
}

static void verify(void)
{
	uint64_t sum;

	if (!sum_truth(&sum))
		return;
	__atomic_fetch_add(&shared->checks, 1, __ATOMIC_RELAXED);
	if (sum > LIMIT)
		__atomic_fetch_add(&shared->overshoots, 1, __ATOMIC_RELAXED);
	if (sum > __atomic_load_n(&shared->worst_bytes, __ATOMIC_RELAXED))
		__atomic_store_n(&shared->worst_bytes, sum, __ATOMIC_RELAXED);
}

__attribute__((noreturn)) static void work(uint32_t slot)
{
	uint64_t held[8] = { 0 }, total = 0;

	for (;;) {
		int i = (int)(next() % 8);

		if (held[i]) { /* free: the driver first, then the charge */
			total -= held[i];
			set_truth(slot, total);
			sluice_memory_release(usage, slot, 0, held[i]);
			held[i] = 0;
			continue;
		}
		held[i] = 1 + next() % (LIMIT / 8);
		if (sluice_memory_reserve(policy, usage, slot, 0, held[i], LIMIT) != 0) {
			__atomic_fetch_add(&shared->denied, 1, __ATOMIC_RELAXED);
			held[i] = 0;
			continue;
		}
		total += held[i];
		set_truth(slot, total);
		__atomic_fetch_add(&shared->allocated, 1, __ATOMIC_RELAXED);
		verify();
	}
}

static pid_t start(uint32_t slot)
{
	struct sluice_policy_entry entry = { .host_pid = 1 };
	uint64_t generation;
	pid_t pid;

	CHECK_EQUAL(sluice_policy_own_slot(policy, slot, &entry, &generation), 0);
	next();
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		seed ^= (uint64_t)getpid() * UINT64_C(0x9e3779b97f4a7c15);
		work(slot);
	}
	return pid;
}

/* The daemon's steps when a pidfd reports the end of a process: free the slot, zero it, and only then give it away
 * again. */
static void reap(uint32_t slot)
{
	if (__atomic_load_n(&shared->truth[slot].version, __ATOMIC_SEQ_CST) % 2) /* killed inside set_truth */
		__atomic_fetch_add(&shared->truth[slot].version, 1, __ATOMIC_SEQ_CST);
	set_truth(slot, 0); /* the kernel has freed its memory */
	CHECK_EQUAL(sluice_policy_free_slot(policy, slot), 0);
	memset(&usage->slot[slot], 0, sizeof(usage->slot[slot]));
}

int main(int argc, char **argv)
{
	long kills = argc > 1 ? strtol(argv[1], NULL, 10) : 2000, stopped_checks = 0, undercharged = 0;
	struct sluice_policy *draft = map(sizeof(*draft));
	uint32_t slots[WORKERS];
	pid_t pids[WORKERS];
	uint64_t sum;

	seed = argc > 2 ? strtoull(argv[2], NULL, 10) * 2 + 1 : 88172645463325252u;
	policy = map(sizeof(*policy));
	usage = map(sizeof(*usage));
	shared = map(sizeof(*shared));
	draft->header.device_count = 1;
	CHECK_EQUAL(sluice_policy_publish(policy, draft), 0);
	sluice_usage_format(usage);
	for (int i = 0; i < WORKERS; i++) {
		slots[i] = (uint32_t)(i * 3);
		pids[i] = start(slots[i]);
	}
	for (long n = 0; n < kills; n++) {
		int victim = (int)(next() % WORKERS);

		nanosleep(&(struct timespec){ .tv_nsec = (long)(next() % 1000000) }, NULL);
		if (n % 16 == 0) { /* stop all processes and check each of them */
			for (int i = 0; i < WORKERS; i++)
				kill(pids[i], SIGSTOP);
			for (int i = 0; i < WORKERS; i++)
				waitpid(pids[i], NULL, WUNTRACED);
			for (int i = 0; i < WORKERS; i++)
				undercharged +=
					usage->slot[slots[i]].dev[0].charged_bytes < shared->truth[slots[i]].bytes;
			stopped_checks++;
			for (int i = 0; i < WORKERS; i++)
				kill(pids[i], SIGCONT);
		}
		CHECK_EQUAL(kill(pids[victim], SIGKILL), 0);
		while (waitpid(pids[victim], NULL, 0) < 0)
			CHECK_EQUAL(errno, EINTR);
		reap(slots[victim]);
		pids[victim] = start(slots[victim]);
	}
	for (int i = 0; i < WORKERS; i++) {
		kill(pids[i], SIGKILL);
		waitpid(pids[i], NULL, 0);
		reap(slots[i]);
	}
	CHECK(sum_truth(&sum));
	printf("{\"kills\": %ld, \"checks\": %llu, \"stopped_checks\": %ld, \"overshoots\": %llu, \"undercharged\": "
	       "%ld, "
	       "\"worst_bytes\": %llu, \"limit_bytes\": %llu, \"allocated\": %llu, \"denied\": %llu, \"leaked_bytes\": "
	       "%llu}\n",
	       kills, (unsigned long long)shared->checks, stopped_checks, (unsigned long long)shared->overshoots,
	       undercharged, (unsigned long long)shared->worst_bytes, (unsigned long long)LIMIT,
	       (unsigned long long)shared->allocated, (unsigned long long)shared->denied,
	       (unsigned long long)sluice_memory_charged(policy, usage, 0));
	return shared->overshoots || undercharged || sluice_memory_charged(policy, usage, 0) ? 1 : 0;
}

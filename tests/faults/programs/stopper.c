/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SIGSTOP at any instruction: `stopper ROUNDS SEED` has processes that reserve and release in a loop, stops one of them
 * at a random point, and measures the cost of a reservation for the others: before, and while it is stopped. Prints one
 * JSON object with the 99th percentile of both, in ns, over all rounds.
 */
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "interpose/attach/region.h"

#define WORKERS 3
#define LIMIT (UINT64_C(1) << 30)
#define PROBES 2000

static struct sluice_policy *policy;
static struct sluice_usage *usage;
static uint64_t *progress;

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void *map(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		abort();
	return p;
}

static void own(uint32_t slot)
{
	struct sluice_policy_entry entry = { .host_pid = 1 };
	uint64_t generation;

	if (sluice_policy_own_slot(policy, slot, &entry, &generation) != 0)
		abort();
}

static pid_t start(uint32_t slot)
{
	pid_t pid = fork();

	if (pid != 0)
		return pid;
	for (;;) {
		if (sluice_memory_reserve(policy, usage, slot, 0, 4096, LIMIT) == 0)
			sluice_memory_release(usage, slot, 0, 4096);
		__atomic_fetch_add(&progress[slot], 1, __ATOMIC_RELAXED);
	}
}

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* The slot of this process is WORKERS. False: a reservation was refused. */
static bool measure(uint64_t *ret_took)
{
	for (int i = 0; i < PROBES; i++) {
		uint64_t began = now_ns();

		if (sluice_memory_reserve(policy, usage, WORKERS, 0, 4096, LIMIT) != 0)
			return false;
		sluice_memory_release(usage, WORKERS, 0, 4096);
		ret_took[i] = now_ns() - began;
	}
	return true;
}

int main(int argc, char **argv)
{
	long rounds = argc > 1 ? strtol(argv[1], NULL, 10) : 100, refused = 0, stuck = 0;
	struct sluice_policy *draft = map(sizeof(*draft));
	uint64_t *before, *during;
	pid_t pids[WORKERS];

	srandom(argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : 1);
	policy = map(sizeof(*policy));
	usage = map(sizeof(*usage));
	progress = map(4096);
	before = calloc((size_t)rounds * PROBES, sizeof(*before));
	during = calloc((size_t)rounds * PROBES, sizeof(*during));
	draft->header.device_count = 1;
	if (!before || !during || sluice_policy_publish(policy, draft) != 0)
		abort();
	sluice_usage_format(usage);
	for (uint32_t i = 0; i <= WORKERS; i++)
		own(i);
	for (uint32_t i = 0; i < WORKERS; i++)
		pids[i] = start(i);
	for (long n = 0; n < rounds; n++) {
		long victim = random() % WORKERS;
		uint64_t other, until_ns;

		refused += !measure(before + n * PROBES);
		nanosleep(&(struct timespec){ .tv_nsec = random() % 1000000 }, NULL);
		kill(pids[victim], SIGSTOP);
		while (waitpid(pids[victim], NULL, WUNTRACED) < 0 && errno == EINTR)
			;
		refused += !measure(during + n * PROBES);
		other = __atomic_load_n(&progress[(victim + 1) % WORKERS], __ATOMIC_RELAXED);
		until_ns = now_ns() + 5000000000u;
		while (__atomic_load_n(&progress[(victim + 1) % WORKERS], __ATOMIC_RELAXED) < other + 1000 &&
		       now_ns() < until_ns)
			usleep(100);
		stuck += now_ns() >= until_ns;
		kill(pids[victim], SIGCONT);
	}
	for (int i = 0; i < WORKERS; i++) {
		kill(pids[i], SIGKILL);
		waitpid(pids[i], NULL, 0);
	}
	qsort(before, (size_t)rounds * PROBES, sizeof(*before), compare);
	qsort(during, (size_t)rounds * PROBES, sizeof(*during), compare);
	printf("{\"rounds\": %ld, \"refused\": %ld, \"stuck\": %ld, \"p99_before_ns\": %llu, \"p99_stopped_ns\": "
	       "%llu}\n",
	       rounds, refused, stuck, (unsigned long long)before[rounds * PROBES * 99 / 100],
	       (unsigned long long)during[rounds * PROBES * 99 / 100]);
	return refused || stuck ? 1 : 0;
}

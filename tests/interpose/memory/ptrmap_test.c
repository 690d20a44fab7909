/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pointer table against a model, and its cost as the number of probed places: the same at 0 and at 50,000 live
 * entries, and the same after a million entries have come and gone. Times belong into the benchmarks; counts do not
 * depend on the load of the machine.
 */
#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "interpose/memory/ptrmap.h"
#include "proto/region.h"
#include "tests/interpose/check.h"

#define MODEL 4096
#define LIVE 50000

static struct ptrmap_entry model[MODEL];
static uint64_t seed = 42;

static uint64_t next(void)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return seed;
}

static struct ptrmap_entry entry_of(uint64_t key, uint64_t bytes)
{
	return (struct ptrmap_entry){ .key = key, .bytes = bytes, .owner = 1, .kind = PTRMAP_MEMORY };
}

static void test_model(void)
{
	struct ptrmap_entry got;

	for (int step = 0; step < 300000; step++) {
		uint64_t i = next() % MODEL, key = UINT64_C(0x7f0000000000) + i * 512;

		if (model[i].kind == PTRMAP_NONE) {
			CHECK(!ptrmap_get(PTRMAP_MEMORY, key, &got));
			model[i] = entry_of(key, next());
			CHECK(ptrmap_put(&model[i]));
		} else if (next() % 3) {
			CHECK(ptrmap_take(PTRMAP_MEMORY, key, &got));
			CHECK_EQUAL(got.bytes, model[i].bytes);
			model[i].kind = PTRMAP_NONE;
		} else {
			CHECK(ptrmap_get(PTRMAP_MEMORY, key, &got));
			CHECK_EQUAL(got.bytes, model[i].bytes);
			CHECK(!ptrmap_get(PTRMAP_ARRAY, key, &got)); /* the same key of another kind is not the entry */
		}
	}
	for (uint64_t i = 0; i < MODEL; i++)
		if (model[i].kind != PTRMAP_NONE)
			CHECK(ptrmap_take(PTRMAP_MEMORY, model[i].key, &got));
	CHECK_EQUAL(ptrmap_count(), 0);
}

static void test_owner(void)
{
	uint64_t freed[SLUICE_MAX_DEVICES] = { 0 };
	struct ptrmap_entry e, got;

	for (uint64_t i = 0; i < 5000; i++) {
		e = entry_of(i * 512, 10);
		e.owner = 1 + i % 3;
		e.device = (int8_t)(i % 2);
		CHECK(ptrmap_put(&e));
	}
	CHECK_EQUAL(ptrmap_count(), 5000);
	ptrmap_drop_owner(2, freed);
	CHECK_EQUAL(freed[0] + freed[1], 16670);
	CHECK_EQUAL(ptrmap_count(), 5000 - 1667);
	for (uint64_t i = 0; i < 5000; i++)
		CHECK_EQUAL(ptrmap_take(PTRMAP_MEMORY, i * 512, &got), i % 3 != 1);
	CHECK_EQUAL(ptrmap_count(), 0);
}

static void test_refer(void)
{
	struct ptrmap_entry e = { .key = 5, .bytes = 7, .owner = 1, .kind = PTRMAP_PHYSICAL }, got;

	CHECK(ptrmap_put(&e));
	CHECK(ptrmap_refer(PTRMAP_PHYSICAL, 5, 1, &got));
	CHECK_EQUAL(got.owner, 2);
	CHECK(ptrmap_refer(PTRMAP_PHYSICAL, 5, -2, &got));
	CHECK_EQUAL(got.owner, 0);
	CHECK(!ptrmap_refer(PTRMAP_PHYSICAL, 5, 1, &got));
}

/* Mean number of probed places for keys that are present and for one that is not. */
static double mean_probes(uint64_t live)
{
	uint64_t total = 0, n = 0;

	for (uint64_t i = 0; i < (live ? live : 1); i += 1 + live / 1000, n++)
		total += ptrmap_probes(PTRMAP_MEMORY, UINT64_C(0x7f0000000000) + i * 512);
	return (double)total / (double)n;
}

static void test_probes(void)
{
	struct ptrmap_entry e, got;
	double empty, full, later;

	empty = mean_probes(0);
	for (uint64_t i = 0; i < LIVE; i++) {
		e = entry_of(UINT64_C(0x7f0000000000) + i * 512, 512);
		CHECK(ptrmap_put(&e));
	}
	CHECK_EQUAL(ptrmap_count(), LIVE);
	full = mean_probes(LIVE);
	for (uint64_t i = 0; i < 1000000; i++) { /* added and removed beside the 50,000 */
		e = entry_of(UINT64_C(0x7e0000000000) + next() % 100000 * 512, 1);
		CHECK(ptrmap_put(&e));
		CHECK(ptrmap_take(PTRMAP_MEMORY, e.key, &got));
	}
	later = mean_probes(LIVE);
	printf("{\"empty\": %.2f, \"live_50000\": %.2f, \"after_a_million\": %.2f}\n", empty, full, later);
	CHECK(empty <= 1.0);
	CHECK(full < 2.5);
	CHECK(later <= full + 0.01);
	for (uint64_t i = 0; i < LIVE; i++)
		CHECK(ptrmap_take(PTRMAP_MEMORY, UINT64_C(0x7f0000000000) + i * 512, &got));
}

static void *hammer(void *arg)
{
	uint64_t base = UINT64_C(0x7f0000000000) + (uint64_t)(uintptr_t)arg * (UINT64_C(1) << 32);
	struct ptrmap_entry e, got;

	for (uint64_t i = 0; i < 20000; i++) {
		e = entry_of(base + i % 512 * 512, i + 1);
		CHECK(ptrmap_put(&e));
		CHECK(ptrmap_take(PTRMAP_MEMORY, e.key, &got));
		CHECK_EQUAL(got.bytes, i + 1);
	}
	return NULL;
}

static void test_threads(void)
{
	pthread_t t[4];

	for (uintptr_t i = 0; i < 4; i++)
		CHECK_EQUAL(pthread_create(&t[i], NULL, hammer, (void *)i), 0);
	for (int i = 0; i < 4; i++)
		pthread_join(t[i], NULL);
	CHECK_EQUAL(ptrmap_count(), 0);
}

/* A child finds the table empty and every lock free, even one that was held during the fork. */
static void test_fork(void)
{
	struct ptrmap_entry e = entry_of(512, 1), got;
	int status;
	pid_t pid;

	CHECK(ptrmap_put(&e));
	ptrmap_hold_locks(true);
	pid = fork();
	if (pid == 0)
		_exit(ptrmap_count() == 0 && !ptrmap_get(PTRMAP_MEMORY, 512, &got) && ptrmap_put(&e) ? 0 : 1);
	CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
	CHECK_EQUAL(status, 0);
	ptrmap_hold_locks(false);
	CHECK(ptrmap_take(PTRMAP_MEMORY, 512, &got));
}

int main(void)
{
	CHECK(ptrmap_prepare());
	test_model();
	test_owner();
	test_refer();
	test_probes();
	test_threads();
	test_fork();
	return 0;
}

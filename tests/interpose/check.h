/* SPDX-License-Identifier: Apache-2.0 */
/* Checks that print the values they compared, for C test programs: the first failure ends them with status 1. */
#ifndef SLUICE_CHECK_H
#define SLUICE_CHECK_H

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "proto/region.h"

#define CHECK(condition)                                                                                               \
	do {                                                                                                           \
		if (!(condition)) {                                                                                    \
			fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition);                        \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

#define CHECK_EQUAL(got, want)                                                                                         \
	do {                                                                                                           \
		unsigned long long got_ = (unsigned long long)(got), want_ = (unsigned long long)(want);               \
		if (got_ != want_) {                                                                                   \
			fprintf(stderr, "%s:%d: %s is %llu, not %llu (%s)\n", __FILE__, __LINE__, #got, got_, want_,   \
			        #want);                                                                                \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

/* The policy page of the region that SLUICE_GRANT_DIR names, for tests that act as the daemon. */
static inline struct sluice_policy *map_policy(void)
{
	char path[512];
	struct sluice_policy *policy;
	int fd;

	snprintf(path, sizeof(path), "%s/%s", getenv("SLUICE_GRANT_DIR"), SLUICE_POLICY_FILE);
	fd = open(path, O_RDWR);
	CHECK(fd >= 0);
	policy = mmap(NULL, SLUICE_POLICY_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(policy != MAP_FAILED);
	close(fd);
	return policy;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Checks that print the values they compared, for C test programs: the first failure ends them with status 1. */
#ifndef SLUICE_CHECK_H
#define SLUICE_CHECK_H

#include <stdio.h>
#include <stdlib.h>

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

#endif

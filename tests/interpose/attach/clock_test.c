/* SPDX-License-Identifier: Apache-2.0 */
/* Only a clock that is behind follows the daemon's heartbeat. */
#include "nativecommon/clock.h"

#include "tests/interpose/check.h"

#define SECOND UINT64_C(1000000000)

int main(void)
{
	uint64_t began_ns = clock_ns();

	clock_follow(0);
	clock_follow(began_ns);
	clock_follow(began_ns + SECOND / 2); /* within the distance of two readings */
	CHECK(clock_ns() < began_ns + 200 * SECOND);

	clock_follow(began_ns + 300 * SECOND);
	CHECK(clock_ns() >= began_ns + 300 * SECOND);
	CHECK(clock_ns() < began_ns + 400 * SECOND);

	uint64_t followed_ns = clock_ns();

	clock_follow(began_ns); /* a daemon that is away writes no newer time */
	CHECK(clock_ns() >= followed_ns);
	clock_follow(clock_ns() + SECOND / 20); /* closer than the first one */
	CHECK(clock_ns() >= followed_ns + SECOND / 20);
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* `publisher FILE`: sets the limits of device 0 of a policy page, again and again, with all words the same number, until it is
 * killed. With nothing between two writes a kill hits the middle of one every few dozen times. */
#include <fcntl.h>
#include <stdint.h>
#include <sys/mman.h>

#include "interpose/attach/region.h"

int main(int argc, char **argv)
{
	int fd = argc == 2 ? open(argv[1], O_RDWR) : -1;
	struct sluice_policy *policy;

	if (fd < 0)
		return 2;
	policy = mmap(NULL, SLUICE_POLICY_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (policy == MAP_FAILED)
		return 3;
	for (uint64_t number = 2;; number = number % 1000000 + 2) {
		struct sluice_policy_device limits = {
			.memory_limit_bytes = number,
			.physical_bytes = number,
			.burst_ns = number,
			.inflight_ns = number,
			.chunk_ns = number,
		};

		if (sluice_policy_set_limits(policy, 0, &limits) != 0)
			return 4;
	}
}

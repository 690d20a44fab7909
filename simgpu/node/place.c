/* SPDX-License-Identifier: Apache-2.0 */
/* The directory of the simulated node, and the time of its devices. */
#include "simgpu/node/place.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "nativecommon/clock.h"

static char directory[200];

/* The device's time: the kernel's clock, not a library's in front of libc. */
uint64_t sim_now_ns(void)
{
	return clock_ns();
}

const char *sim_directory(void)
{
	if (!directory[0]) {
		const char *chosen = getenv("SLUICE_SIM_DIR");

		if (chosen && chosen[0])
			snprintf(directory, sizeof(directory), "%s", chosen);
		else
			snprintf(directory, sizeof(directory), "/dev/shm/sluice-sim-%u", (unsigned)getuid());
	}
	return directory;
}

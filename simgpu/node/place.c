/* SPDX-License-Identifier: Apache-2.0 */
/* Where the simulated node is kept, and the time of its devices. */
#include "simgpu/node/place.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "interpose/attach/clock.h"

static char directory[200];

/* The device's time: not what a library in front of libc tells this program. */
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

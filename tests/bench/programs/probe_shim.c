/* SPDX-License-Identifier: Apache-2.0 */
/* What stands before probe_driver.c: our probe on the way into it, and the same way without. */
#include <stdint.h>

#include "interpose/compute/probe.h"

#define API __attribute__((visibility("default")))

API int cuInit(unsigned flags);
API int cuLaunchKernel(uint64_t *launches);
API int launch_without_probe(uint64_t *launches);

API int sluice_interposer_major = 1;
API int (*probe_driver)(uint64_t *launches);

/* As the interposer keeps its own: no call to find it. */
static __thread struct sluice_launch_event event __attribute__((tls_model("initial-exec"))) = { .cost_ns = 1000 };

API int cuInit(unsigned flags)
{
	return (int)flags;
}

API int cuLaunchKernel(uint64_t *launches)
{
	PROBE(SLUICE_PROBE_LAUNCH, &event);
	return probe_driver(launches);
}

API int launch_without_probe(uint64_t *launches)
{
	return probe_driver(launches);
}

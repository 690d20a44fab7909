/* SPDX-License-Identifier: Apache-2.0 */
/* Stands in front of probe_driver.c: one way into it with our probe, and the same way without. */
#include <stdint.h>

#include "interpose/compute/probe.h"

#define API __attribute__((visibility("default")))

API int cuInit(unsigned flags);
API int cuLaunchKernel(uint64_t *launches);
API int launch_without_probe(uint64_t *launches);

API int sluice_interposer_major = 1;
API int (*probe_driver)(uint64_t *launches);

/* Kept as in the interposer: no call is needed to find it. */
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

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a change of contexts costs: see switches.h.
 *
 * The GPU changes to our context when it has something of ours to do, so the time from an event's call to its completion
 * is the change, plus what is left of a neighbour's launch. No clock of the GPU is needed.
 */
#include "interpose/compute/timing/switches.h"

#include <sched.h>
#include <string.h>

#include "nativecommon/clock.h"
#include "interpose/compute/timing/homes.h"
#include "interpose/compute/timing/records.h"
#include "interpose/driver/driver.h"
#include "interpose/tenant/guest.h"
#include "proto/region.h"

#define FIRST_EVERY_NS UINT64_C(100000000) /* until there is a result */
#define EVERY_NS UINT64_C(1000000000)
#define LOOK_NS UINT64_C(4000) /* between two queries */

static struct {
	uint32_t busy; /* one thread at a time */
	uint64_t next_ns;
	struct switch_samples samples;
} measured[SLUICE_MAX_DEVICES];

/* From the call of an event to its completion; 0 = unknown. */
static uint64_t reached_ns(struct throttle_pipe *pipe, CUstream stream)
{
	CUevent event = __atomic_load_n(&pipe->probe, __ATOMIC_RELAXED);

	if (!event && driver.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
		return 0;
	__atomic_store_n(&pipe->probe, event, __ATOMIC_RELAXED);
	uint64_t began_ns = clock_ns(), took_ns = 0;
	CUresult r = driver.cuEventRecord(event, stream);

	if (r != CUDA_SUCCESS)
		return 0;
	while ((r = driver.cuEventQuery(event)) == CUDA_ERROR_NOT_READY &&
	       (took_ns = clock_ns() - began_ns) <= SWITCH_MOST_NS)
		for (uint64_t again_ns = began_ns + took_ns + LOOK_NS; clock_ns() < again_ns;)
			sched_yield();
	return r == CUDA_SUCCESS ? clock_ns() - began_ns : 0;
}

void switches_measure(struct throttle_pipe *pipe, CUstream stream)
{
	uint64_t now_ns = clock_ns();
	int device;

	/* a foreign stream's event would be of another context */
	if (!pipe || homes_find(pipe, stream) != context_of(pipe))
		return;
	device = device_of(pipe);
	if (now_ns < __atomic_load_n(&measured[device].next_ns, __ATOMIC_RELAXED) ||
	    __atomic_exchange_n(&measured[device].busy, 1, __ATOMIC_ACQUIRE))
		return;
	uint32_t cost_ns = switch_cost_after(&measured[device].samples, reached_ns(pipe, stream));

	if (cost_ns)
		__atomic_store_n(guest_shared_switch(device), cost_ns, __ATOMIC_RELAXED);
	__atomic_store_n(&measured[device].next_ns, now_ns + (cost_ns ? EVERY_NS : FIRST_EVERY_NS), __ATOMIC_RELAXED);
	__atomic_store_n(&measured[device].busy, 0, __ATOMIC_RELEASE);
}

void switches_forget_parent(void)
{
	memset(measured, 0, sizeof(measured));
}

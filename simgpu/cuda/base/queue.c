/* SPDX-License-Identifier: Apache-2.0 */
/* The queue of a context: see queue.h. Every reader first advances the device's time to now, on behalf of all. */
#include "simgpu/cuda/base/queue.h"

#include <sched.h>
#include <time.h>

#include "simgpu/cuda/base/call.h"
#include "simgpu/cuda/base/process.h"
#include "simgpu/node/node.h"
#include "simgpu/node/place.h"

#define SPIN_BEFORE_NS UINT64_C(60000) /* wake up this long before the expected end: sleeps are no more exact */

static void look(struct CUctx_st *context)
{
	sim_lock(context->gpu);
	sim_advance(sim_state(), context->gpu);
	sim_unlock(context->gpu);
}

static uint64_t tail_of(const struct CUctx_st *context)
{
	return __atomic_load_n(&sim_published(context->gpu)->lane[context->index].tail, __ATOMIC_RELAXED);
}

uint64_t sim_submit(struct CUctx_st *context, enum sim_op_kind kind, uint64_t duration_ns, uint32_t cell)
{
	struct sim_ring *ring = &context->gpu->ring[context->index];
	struct sim_client *client = sim_process()->client;
	int backoff = 0;

	for (;;) {
		sim_gate_enter(client);
		while (__atomic_exchange_n(&context->submit_lock, 1, __ATOMIC_ACQUIRE))
			sched_yield();
		uint64_t head = ring->head;

		if (head - tail_of(context) < SIM_RING) {
			struct sim_op *op = &ring->op[head % SIM_RING];

			op->kind = kind;
			op->duration_ns = duration_ns;
			op->cell = cell;
			op->submit_ns = sim_now_ns();
			/* Pairs with the scheduler's acquire load of head. */
			__atomic_store_n(&ring->head, head + 1, __ATOMIC_RELEASE);
			__atomic_store_n(&context->submit_lock, 0, __ATOMIC_RELEASE);
			sim_gate_leave(client);
			return head + 1;
		}
		__atomic_store_n(&context->submit_lock, 0, __ATOMIC_RELEASE);
		sim_gate_leave(client);
		look(context);
		if (backoff++ > 2 && head - tail_of(context) >= SIM_RING) {
			struct timespec nap = { .tv_nsec = 20000 };

			nanosleep(&nap, NULL);
		}
	}
}

bool sim_done(struct CUctx_st *context, uint64_t sequence)
{
	if (tail_of(context) >= sequence)
		return true;
	look(context);
	return tail_of(context) >= sequence;
}

CUresult sim_wait(struct CUctx_st *context, uint64_t sequence)
{
	struct sim_world world;

	while (tail_of(context) < sequence) {
		if (context->gpu->lost)
			return CUDA_ERROR_DEVICE_UNAVAILABLE;
		sim_lock(context->gpu);
		const struct sim_schedule *now = sim_advance(sim_state(), context->gpu);

		sim_world(sim_state(), context->gpu, &world);
		uint64_t expected_ns = timeline_expect(now, &world, context->index, sequence);

		sim_unlock(context->gpu);
		uint64_t now_ns = sim_now_ns();

		if (expected_ns == SIM_FOREVER)
			expected_ns = now_ns + UINT64_C(10000000);
		if (expected_ns > now_ns + SPIN_BEFORE_NS) {
			uint64_t until_ns = expected_ns - SPIN_BEFORE_NS;
			struct timespec until = { .tv_sec = (time_t)(until_ns / 1000000000u),
				                  .tv_nsec = (long)(until_ns % 1000000000u) };

			clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
		} else {
			while (sim_now_ns() < expected_ns)
				sched_yield();
		}
	}
	return CUDA_SUCCESS;
}

uint64_t sim_copy_ns(const struct CUctx_st *context, uint64_t bytes)
{
	return bytes * 1000 / sim_model_of(context)->bandwidth_bytes_per_us;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels that take time on a clock, events, and executable graphs: all graphs take one duration, which the test
 * sets. */
#include "tests/interpose/stub/stub.h"

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

API uint64_t stub_busy_ns(int dev)
{
	return __atomic_load_n(&gpu[dev].busy_ns, __ATOMIC_SEQ_CST);
}

/* Takes `gx` microseconds of the device. */
API CUresult cuLaunchKernel(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
                            unsigned int by, unsigned int bz, unsigned int bytes, CUstream stream, void **params,
                            void **extra)
{
	uint64_t now = now_ns();

	(void)f, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)bytes, (void)stream, (void)params;
	(void)extra;
	__atomic_fetch_add(&launches, 1, __ATOMIC_RELAXED);
	if (!current())
		return CUDA_SUCCESS;
	pthread_mutex_lock(&lock);
	if (gpu[current()->dev].idle_ns < now)
		gpu[current()->dev].idle_ns = now;
	gpu[current()->dev].idle_ns += 1000 * (uint64_t)gx;
	gpu[current()->dev].busy_ns += 1000 * (uint64_t)gx;
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

static uint64_t idle_ns(void)
{
	uint64_t idle;

	pthread_mutex_lock(&lock);
	idle = current() ? gpu[current()->dev].idle_ns : 0;
	pthread_mutex_unlock(&lock);
	return idle;
}
static CUresult wait_until(uint64_t end)
{
	uint64_t now = now_ns();

	if (end > now)
		nanosleep(&(struct timespec){ .tv_sec = (time_t)((end - now) / 1000000000u),
		                              .tv_nsec = (long)((end - now) % 1000000000u) },
		          NULL);
	return begin();
}
API CUresult cuStreamSynchronize(CUstream stream)
{
	(void)stream;
	return wait_until(idle_ns());
}
API CUresult cuCtxSynchronize(void)
{
	return wait_until(idle_ns());
}

/* Events are never reused and never freed, so that a handle that outlives its context causes an error. */
static struct event {
	struct object *context;
	uint64_t at_ns;
} events[1 << 16];
static uint32_t events_made;

static struct event *event_of(CUevent handle)
{
	struct event *e = (struct event *)handle;

	return e >= events && e < events + sizeof(events) / sizeof(events[0]) && e->context &&
	                       e->context->kind == CONTEXT
	               ? e
	               : NULL;
}
API CUresult cuEventCreate(CUevent *event, unsigned int flags)
{
	uint32_t i = __atomic_fetch_add(&events_made, 1, __ATOMIC_RELAXED);

	(void)flags;
	if (!current() || i >= sizeof(events) / sizeof(events[0]))
		return CUDA_ERROR_INVALID_CONTEXT;
	events[i].context = current();
	*event = (CUevent)&events[i];
	return CUDA_SUCCESS;
}
API CUresult cuEventRecord(CUevent event, CUstream stream)
{
	struct event *e = event_of(event);
	uint64_t at = idle_ns(), now = now_ns();

	(void)stream;
	if (!e || e->context != current())
		return CUDA_ERROR_INVALID_HANDLE;
	__atomic_store_n(&e->at_ns, at > now ? at : now, __ATOMIC_SEQ_CST);
	return CUDA_SUCCESS;
}
API CUresult cuEventQuery(CUevent event)
{
	struct event *e = event_of(event);

	if (!e)
		return CUDA_ERROR_INVALID_HANDLE;
	return __atomic_load_n(&e->at_ns, __ATOMIC_SEQ_CST) <= now_ns() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
API CUresult cuEventElapsedTime(float *ms, CUevent start, CUevent end)
{
	struct event *a = event_of(start), *b = event_of(end);

	if (!a || !b)
		return CUDA_ERROR_INVALID_HANDLE;
	*ms = (float)(int64_t)(b->at_ns - a->at_ns) / 1e6f;
	return CUDA_SUCCESS;
}
API CUresult cuLaunchKernel_ptsz(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
                                 unsigned int by, unsigned int bz, unsigned int bytes, CUstream stream, void **params,
                                 void **extra)
{
	return cuLaunchKernel(f, gx, gy, gz, bx, by, bz, bytes, stream, params, extra);
}

/* Eleven arguments of mixed kinds, which a trampoline must pass unchanged. */
API CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D *copy)
{
	return (CUresult)copy->WidthInBytes;
}

/* --- executable graphs, and every call that may change one -------------------------------------------------------- */

static unsigned graph_us = 10;

API void stub_set_graph_us(unsigned us)
{
	graph_us = us;
}

API CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
	return cuLaunchKernel((CUfunction)exec, graph_us, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
}

#define CHANGES(name)                                                                                                  \
	API CUresult name(CUgraphExec exec, const void *what)                                                          \
	{                                                                                                              \
		(void)exec, (void)what;                                                                                \
		return CUDA_SUCCESS;                                                                                   \
	}

CHANGES(cuGraphExecUpdate)
CHANGES(cuGraphExecUpdate_v2)
CHANGES(cuGraphExecKernelNodeSetParams)
CHANGES(cuGraphExecKernelNodeSetParams_v2)
CHANGES(cuGraphExecMemcpyNodeSetParams)
CHANGES(cuGraphExecMemsetNodeSetParams)
CHANGES(cuGraphExecHostNodeSetParams)
CHANGES(cuGraphExecChildGraphNodeSetParams)
CHANGES(cuGraphExecBatchMemOpNodeSetParams)
CHANGES(cuGraphExecNodeSetParams)
CHANGES(cuGraphNodeSetEnabled)
CHANGES(cuGraphExecDestroy)

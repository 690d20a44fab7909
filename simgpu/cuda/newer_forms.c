/* SPDX-License-Identifier: Apache-2.0 */
/* Newer forms of calls whose older form is modelled: they have one argument more, which is checked here. */
#include "simgpu/cuda/base/call.h"
#include "simgpu/cuda/streams/streams.h"
#include "simgpu/cuda/work/wait.h"

CUresult cuCtxSynchronize(void);
SIM_API CUresult cuCtxSynchronize_v2(CUcontext context)
{
	SIM_CALL();
	if (!context || context == sim_current())
		return cuCtxSynchronize();
	if (!SIM_HANDLE(context, SIM_TAG_CONTEXT))
		return CUDA_ERROR_INVALID_CONTEXT;
	CUresult held = sim_hold_wait(context, NULL);

	if (held != CUDA_SUCCESS)
		return held;
	return sim_synchronise(context, __atomic_load_n(&context->gpu->ring[context->index].head, __ATOMIC_ACQUIRE));
}

CUresult cuStreamGetCtx(CUstream stream, CUcontext *context);
CUresult cuStreamGetGreenCtx(CUstream stream, CUgreenCtx *green);
SIM_API CUresult cuStreamGetCtx_v2(CUstream stream, CUcontext *context, CUgreenCtx *green)
{
	if (green)
		cuStreamGetGreenCtx(stream, green);
	return cuStreamGetCtx(stream, context);
}

SIM_API CUresult cuStreamGetCtx_v2_ptsz(CUstream stream, CUcontext *context, CUgreenCtx *green)
{
	return cuStreamGetCtx_v2(stream ? stream : CU_STREAM_PER_THREAD, context, green);
}

/* Edges of the simulated driver carry no data: each is a full dependency, encoded as zeros. */
static CUresult with_data(CUresult r, CUgraphEdgeData *data, const size_t *count)
{
	for (size_t i = 0; r == CUDA_SUCCESS && data && i < *count; i++)
		data[i] = (CUgraphEdgeData){ 0 };
	return r;
}

CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count);
SIM_API CUresult cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                                           const CUgraphEdgeData *data, size_t count)
{
	(void)data;
	return cuGraphAddDependencies(graph, from, to, count);
}

CUresult cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count);
SIM_API CUresult cuGraphRemoveDependencies_v2(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                                              const CUgraphEdgeData *data, size_t count)
{
	(void)data;
	return cuGraphRemoveDependencies(graph, from, to, count);
}

CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count);
SIM_API CUresult cuGraphGetEdges_v2(CUgraph graph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *data,
                                    size_t *count)
{
	return with_data(cuGraphGetEdges(graph, from, to, count), data, count);
}

CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode *list, size_t *count);
SIM_API CUresult cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode *list, CUgraphEdgeData *data,
                                               size_t *count)
{
	return with_data(cuGraphNodeGetDependencies(node, list, count), data, count);
}

CUresult cuGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode *list, size_t *count);
SIM_API CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode node, CUgraphNode *list, CUgraphEdgeData *data,
                                                 size_t *count)
{
	return with_data(cuGraphNodeGetDependentNodes(node, list, count), data, count);
}

CUresult cuStreamUpdateCaptureDependencies(CUstream stream, CUgraphNode *list, size_t count, unsigned flags);
SIM_API CUresult cuStreamUpdateCaptureDependencies_v2(CUstream stream, CUgraphNode *list, const CUgraphEdgeData *data,
                                                      size_t count, unsigned flags)
{
	(void)data;
	return cuStreamUpdateCaptureDependencies(stream, list, count, flags);
}

SIM_API CUresult cuStreamUpdateCaptureDependencies_v2_ptsz(CUstream stream, CUgraphNode *list,
                                                           const CUgraphEdgeData *data, size_t count, unsigned flags)
{
	return cuStreamUpdateCaptureDependencies_v2(stream ? stream : CU_STREAM_PER_THREAD, list, data, count, flags);
}

/* The flags choose the default stream, whichever flavour a program was linked with. */
CUresult cuGetProcAddress_v2(const char *name, void **function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status);
SIM_API CUresult cuGetProcAddress_v2_ptsz(const char *name, void **function, int version, cuuint64_t flags,
                                          CUdriverProcAddressQueryResult *status)
{
	if (!(flags & (CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)))
		flags |= CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
	return cuGetProcAddress_v2(name, function, version, flags, status);
}

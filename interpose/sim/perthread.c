/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The flavours of calls that programs built for a per-thread default stream are linked with: a NULL stream means the
 * calling thread's own. Calls that take no stream are the same here, but symbols of their own as in the real driver.
 */
#include "interpose/sim/object.h"

#define OWN(stream) ((stream) ? (stream) : CU_STREAM_PER_THREAD)
#define FLAVOUR(symbol, call, params, arguments)                                                                       \
	CUresult call params;                                                                                          \
	SIM_API CUresult symbol params                                                                                 \
	{                                                                                                              \
		return call arguments;                                                                                 \
	}

FLAVOUR(cuEventRecordWithFlags_ptsz, cuEventRecordWithFlags, (CUevent hEvent, CUstream hStream, unsigned flags), (hEvent, OWN(hStream), flags))
FLAVOUR(cuEventRecord_ptsz, cuEventRecord, (CUevent hEvent, CUstream hStream), (hEvent, OWN(hStream)))
FLAVOUR(cuGraphInstantiateWithParams_ptsz, cuGraphInstantiateWithParams, (CUgraphExec *phGraphExec, CUgraph hGraph, CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams), (phGraphExec, hGraph, instantiateParams))
FLAVOUR(cuGraphLaunch_ptsz, cuGraphLaunch, (CUgraphExec hGraph, CUstream hStream), (hGraph, OWN(hStream)))
FLAVOUR(cuGraphUpload_ptsz, cuGraphUpload, (CUgraphExec hGraph, CUstream hStream), (hGraph, OWN(hStream)))
FLAVOUR(cuLaunchCooperativeKernel_ptsz, cuLaunchCooperativeKernel, (CUfunction f, unsigned gridDimX, unsigned gridDimY, unsigned gridDimZ, unsigned blockDimX, unsigned blockDimY, unsigned blockDimZ, unsigned sharedMemBytes, CUstream hStream, void **kernelParams), (f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes, OWN(hStream), kernelParams))
FLAVOUR(cuLaunchHostFunc_ptsz, cuLaunchHostFunc, (CUstream hStream, CUhostFn fn, void *userData), (OWN(hStream), fn, userData))
FLAVOUR(cuLaunchKernel_ptsz, cuLaunchKernel, (CUfunction f, unsigned gridDimX, unsigned gridDimY, unsigned gridDimZ, unsigned blockDimX, unsigned blockDimY, unsigned blockDimZ, unsigned sharedMemBytes, CUstream hStream, void **kernelParams, void **extra), (f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes, OWN(hStream), kernelParams, extra))
FLAVOUR(cuMemcpyDtoH_v2_ptds, cuMemcpyDtoH_v2, (void *dstHost, CUdeviceptr srcDevice, size_t ByteCount), (dstHost, srcDevice, ByteCount))
FLAVOUR(cuMemcpyHtoD_v2_ptds, cuMemcpyHtoD_v2, (CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount), (dstDevice, srcHost, ByteCount))
FLAVOUR(cuStreamAddCallback_ptsz, cuStreamAddCallback, (CUstream hStream, CUstreamCallback callback, void *userData, unsigned flags), (OWN(hStream), callback, userData, flags))
FLAVOUR(cuStreamBeginCaptureToGraph_ptsz, cuStreamBeginCaptureToGraph, (CUstream hStream, CUgraph hGraph, const CUgraphNode *dependencies, const CUgraphEdgeData *dependencyData, size_t numDependencies, CUstreamCaptureMode mode), (OWN(hStream), hGraph, dependencies, dependencyData, numDependencies, mode))
FLAVOUR(cuStreamBeginCapture_ptsz, cuStreamBeginCapture, (CUstream hStream), (OWN(hStream)))
FLAVOUR(cuStreamBeginCapture_v2_ptsz, cuStreamBeginCapture_v2, (CUstream hStream, CUstreamCaptureMode mode), (OWN(hStream), mode))
FLAVOUR(cuStreamEndCapture_ptsz, cuStreamEndCapture, (CUstream hStream, CUgraph *phGraph), (OWN(hStream), phGraph))
FLAVOUR(cuStreamGetCaptureInfo_ptsz, cuStreamGetCaptureInfo, (CUstream hStream, CUstreamCaptureStatus *captureStatus_out, cuuint64_t *id_out), (OWN(hStream), captureStatus_out, id_out))
FLAVOUR(cuStreamGetCaptureInfo_v2_ptsz, cuStreamGetCaptureInfo_v2, (CUstream hStream, CUstreamCaptureStatus *captureStatus_out, cuuint64_t *id_out, CUgraph *graph_out, const CUgraphNode **dependencies_out, size_t *numDependencies_out), (OWN(hStream), captureStatus_out, id_out, graph_out, dependencies_out, numDependencies_out))
FLAVOUR(cuStreamGetCaptureInfo_v3_ptsz, cuStreamGetCaptureInfo_v3, (CUstream hStream, CUstreamCaptureStatus *captureStatus_out, cuuint64_t *id_out, CUgraph *graph_out, const CUgraphNode **dependencies_out, const CUgraphEdgeData **edgeData_out, size_t *numDependencies_out), (OWN(hStream), captureStatus_out, id_out, graph_out, dependencies_out, edgeData_out, numDependencies_out))
FLAVOUR(cuStreamGetCtx_ptsz, cuStreamGetCtx, (CUstream hStream, CUcontext *pctx), (OWN(hStream), pctx))
FLAVOUR(cuStreamGetFlags_ptsz, cuStreamGetFlags, (CUstream hStream, unsigned *flags), (OWN(hStream), flags))
FLAVOUR(cuStreamGetId_ptsz, cuStreamGetId, (CUstream hStream, unsigned long long *streamId), (OWN(hStream), streamId))
FLAVOUR(cuStreamGetPriority_ptsz, cuStreamGetPriority, (CUstream hStream, int *priority), (OWN(hStream), priority))
FLAVOUR(cuStreamIsCapturing_ptsz, cuStreamIsCapturing, (CUstream hStream, CUstreamCaptureStatus *captureStatus), (OWN(hStream), captureStatus))
FLAVOUR(cuStreamQuery_ptsz, cuStreamQuery, (CUstream hStream), (OWN(hStream)))
FLAVOUR(cuStreamSynchronize_ptsz, cuStreamSynchronize, (CUstream hStream), (OWN(hStream)))
FLAVOUR(cuStreamUpdateCaptureDependencies_ptsz, cuStreamUpdateCaptureDependencies, (CUstream hStream, CUgraphNode *dependencies, size_t numDependencies, unsigned flags), (OWN(hStream), dependencies, numDependencies, flags))
FLAVOUR(cuStreamWaitEvent_ptsz, cuStreamWaitEvent, (CUstream hStream, CUevent hEvent, unsigned Flags), (OWN(hStream), hEvent, Flags))

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **params, void **extra);
SIM_API CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction f, void **params, void **extra)
{
	if (!config)
		return CUDA_ERROR_INVALID_VALUE;
	CUlaunchConfig own = *config;

	own.hStream = OWN(config->hStream);
	return cuLaunchKernelEx(&own, f, params, extra);
}

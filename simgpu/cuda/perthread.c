/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The flavours of calls for programs built with a per-thread default stream: a NULL stream means the calling thread's
 * own. Calls without a stream argument do the same as the plain ones, but are symbols of their own, as in the real
 * driver.
 */
#include "simgpu/cuda/base/call.h"

#define OWN(stream) ((stream) ? (stream) : CU_STREAM_PER_THREAD)
#define FLAVOUR(symbol, call, params, arguments)                                                                       \
	CUresult call params;                                                                                          \
	SIM_API CUresult symbol params                                                                                 \
	{                                                                                                              \
		return call arguments;                                                                                 \
	}

FLAVOUR(cuEventRecordWithFlags_ptsz, cuEventRecordWithFlags, (CUevent hEvent, CUstream hStream, unsigned flags),
        (hEvent, OWN(hStream), flags))
FLAVOUR(cuEventRecord_ptsz, cuEventRecord, (CUevent hEvent, CUstream hStream), (hEvent, OWN(hStream)))
FLAVOUR(cuGraphInstantiateWithParams_ptsz, cuGraphInstantiateWithParams,
        (CUgraphExec * phGraphExec, CUgraph hGraph, CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams),
        (phGraphExec, hGraph, instantiateParams))
FLAVOUR(cuGraphLaunch_ptsz, cuGraphLaunch, (CUgraphExec hGraph, CUstream hStream), (hGraph, OWN(hStream)))
FLAVOUR(cuGraphUpload_ptsz, cuGraphUpload, (CUgraphExec hGraph, CUstream hStream), (hGraph, OWN(hStream)))
FLAVOUR(cuLaunchCooperativeKernel_ptsz, cuLaunchCooperativeKernel,
        (CUfunction f, unsigned gridDimX, unsigned gridDimY, unsigned gridDimZ, unsigned blockDimX, unsigned blockDimY,
         unsigned blockDimZ, unsigned sharedMemBytes, CUstream hStream, void **kernelParams),
        (f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes, OWN(hStream), kernelParams))
FLAVOUR(cuLaunchHostFunc_ptsz, cuLaunchHostFunc, (CUstream hStream, CUhostFn fn, void *userData),
        (OWN(hStream), fn, userData))
FLAVOUR(cuLaunchKernel_ptsz, cuLaunchKernel,
        (CUfunction f, unsigned gridDimX, unsigned gridDimY, unsigned gridDimZ, unsigned blockDimX, unsigned blockDimY,
         unsigned blockDimZ, unsigned sharedMemBytes, CUstream hStream, void **kernelParams, void **extra),
        (f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes, OWN(hStream), kernelParams,
         extra))
FLAVOUR(cuMemAllocAsync_ptsz, cuMemAllocAsync, (CUdeviceptr * dptr, size_t bytesize, CUstream hStream),
        (dptr, bytesize, OWN(hStream)))
FLAVOUR(cuMemAllocFromPoolAsync_ptsz, cuMemAllocFromPoolAsync,
        (CUdeviceptr * dptr, size_t bytesize, CUmemoryPool pool, CUstream hStream),
        (dptr, bytesize, pool, OWN(hStream)))
FLAVOUR(cuMemFreeAsync_ptsz, cuMemFreeAsync, (CUdeviceptr dptr, CUstream hStream), (dptr, OWN(hStream)))
FLAVOUR(cuMemPrefetchAsync_ptsz, cuMemPrefetchAsync,
        (CUdeviceptr devPtr, size_t count, CUdevice dstDevice, CUstream hStream),
        (devPtr, count, dstDevice, OWN(hStream)))
FLAVOUR(cuMemPrefetchAsync_v2_ptsz, cuMemPrefetchAsync_v2,
        (CUdeviceptr devPtr, size_t count, CUmemLocation location, unsigned flags, CUstream hStream),
        (devPtr, count, location, flags, OWN(hStream)))
FLAVOUR(cuMemcpy2DAsync_v2_ptsz, cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D *pCopy, CUstream hStream),
        (pCopy, OWN(hStream)))
FLAVOUR(cuMemcpy2DUnaligned_v2_ptds, cuMemcpy2DUnaligned_v2, (const CUDA_MEMCPY2D *pCopy), (pCopy))
FLAVOUR(cuMemcpy2D_v2_ptds, cuMemcpy2D_v2, (const CUDA_MEMCPY2D *pCopy), (pCopy))
FLAVOUR(cuMemcpy3DAsync_v2_ptsz, cuMemcpy3DAsync_v2, (const CUDA_MEMCPY3D *pCopy, CUstream hStream),
        (pCopy, OWN(hStream)))
FLAVOUR(cuMemcpy3DPeerAsync_ptsz, cuMemcpy3DPeerAsync, (const CUDA_MEMCPY3D_PEER *pCopy, CUstream hStream),
        (pCopy, OWN(hStream)))
FLAVOUR(cuMemcpy3DPeer_ptds, cuMemcpy3DPeer, (const CUDA_MEMCPY3D_PEER *pCopy), (pCopy))
FLAVOUR(cuMemcpy3D_v2_ptds, cuMemcpy3D_v2, (const CUDA_MEMCPY3D *pCopy), (pCopy))
FLAVOUR(cuMemcpy3DBatchAsync_ptsz, cuMemcpy3DBatchAsync,
        (size_t count, CUDA_MEMCPY3D_BATCH_OP *list, size_t *failed, unsigned long long flags, CUstream hStream),
        (count, list, failed, flags, OWN(hStream)))
FLAVOUR(cuMemcpy3DBatchAsync_v2_ptsz, cuMemcpy3DBatchAsync_v2,
        (size_t count, CUDA_MEMCPY3D_BATCH_OP *list, unsigned long long flags, CUstream hStream),
        (count, list, flags, OWN(hStream)))
FLAVOUR(cuMemcpy3DWithAttributesAsync_ptsz, cuMemcpy3DWithAttributesAsync,
        (CUDA_MEMCPY3D_BATCH_OP * op, unsigned long long flags, CUstream hStream), (op, flags, OWN(hStream)))
FLAVOUR(cuMemcpyWithAttributesAsync_ptsz, cuMemcpyWithAttributesAsync,
        (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUmemcpyAttributes *attributes, CUstream hStream),
        (to, from, bytes, attributes, OWN(hStream)))
FLAVOUR(cuMemcpyAsync_ptsz, cuMemcpyAsync, (CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream),
        (dst, src, ByteCount, OWN(hStream)))
FLAVOUR(cuMemcpyAtoA_v2_ptds, cuMemcpyAtoA_v2,
        (CUarray dstArray, size_t dstOffset, CUarray srcArray, size_t srcOffset, size_t ByteCount),
        (dstArray, dstOffset, srcArray, srcOffset, ByteCount))
FLAVOUR(cuMemcpyAtoD_v2_ptds, cuMemcpyAtoD_v2,
        (CUdeviceptr dstDevice, CUarray srcArray, size_t srcOffset, size_t ByteCount),
        (dstDevice, srcArray, srcOffset, ByteCount))
FLAVOUR(cuMemcpyAtoHAsync_v2_ptsz, cuMemcpyAtoHAsync_v2,
        (void *dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount, CUstream hStream),
        (dstHost, srcArray, srcOffset, ByteCount, OWN(hStream)))
FLAVOUR(cuMemcpyAtoH_v2_ptds, cuMemcpyAtoH_v2, (void *dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount),
        (dstHost, srcArray, srcOffset, ByteCount))
FLAVOUR(cuMemcpyDtoA_v2_ptds, cuMemcpyDtoA_v2,
        (CUarray dstArray, size_t dstOffset, CUdeviceptr srcDevice, size_t ByteCount),
        (dstArray, dstOffset, srcDevice, ByteCount))
FLAVOUR(cuMemcpyDtoDAsync_v2_ptsz, cuMemcpyDtoDAsync_v2,
        (CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream),
        (dstDevice, srcDevice, ByteCount, OWN(hStream)))
FLAVOUR(cuMemcpyDtoD_v2_ptds, cuMemcpyDtoD_v2, (CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount),
        (dstDevice, srcDevice, ByteCount))
FLAVOUR(cuMemcpyDtoHAsync_v2_ptsz, cuMemcpyDtoHAsync_v2,
        (void *dstHost, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream),
        (dstHost, srcDevice, ByteCount, OWN(hStream)))
FLAVOUR(cuMemcpyDtoH_v2_ptds, cuMemcpyDtoH_v2, (void *dstHost, CUdeviceptr srcDevice, size_t ByteCount),
        (dstHost, srcDevice, ByteCount))
FLAVOUR(cuMemcpyHtoAAsync_v2_ptsz, cuMemcpyHtoAAsync_v2,
        (CUarray dstArray, size_t dstOffset, const void *srcHost, size_t ByteCount, CUstream hStream),
        (dstArray, dstOffset, srcHost, ByteCount, OWN(hStream)))
FLAVOUR(cuMemcpyHtoA_v2_ptds, cuMemcpyHtoA_v2,
        (CUarray dstArray, size_t dstOffset, const void *srcHost, size_t ByteCount),
        (dstArray, dstOffset, srcHost, ByteCount))
FLAVOUR(cuMemcpyHtoDAsync_v2_ptsz, cuMemcpyHtoDAsync_v2,
        (CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount, CUstream hStream),
        (dstDevice, srcHost, ByteCount, OWN(hStream)))
FLAVOUR(cuMemcpyHtoD_v2_ptds, cuMemcpyHtoD_v2, (CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount),
        (dstDevice, srcHost, ByteCount))
FLAVOUR(cuMemcpyPeerAsync_ptsz, cuMemcpyPeerAsync,
        (CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice, CUcontext srcContext, size_t ByteCount,
         CUstream hStream),
        (dstDevice, dstContext, srcDevice, srcContext, ByteCount, OWN(hStream)))
FLAVOUR(cuMemcpyPeer_ptds, cuMemcpyPeer,
        (CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice, CUcontext srcContext, size_t ByteCount),
        (dstDevice, dstContext, srcDevice, srcContext, ByteCount))
FLAVOUR(cuMemcpy_ptds, cuMemcpy, (CUdeviceptr dst, CUdeviceptr src, size_t ByteCount), (dst, src, ByteCount))
FLAVOUR(cuMemsetD16Async_ptsz, cuMemsetD16Async, (CUdeviceptr dstDevice, unsigned short us, size_t N, CUstream hStream),
        (dstDevice, us, N, OWN(hStream)))
FLAVOUR(cuMemsetD16_v2_ptds, cuMemsetD16_v2, (CUdeviceptr dstDevice, unsigned short us, size_t N), (dstDevice, us, N))
FLAVOUR(cuMemsetD2D16Async_ptsz, cuMemsetD2D16Async,
        (CUdeviceptr dstDevice, size_t dstPitch, unsigned short us, size_t Width, size_t Height, CUstream hStream),
        (dstDevice, dstPitch, us, Width, Height, OWN(hStream)))
FLAVOUR(cuMemsetD2D16_v2_ptds, cuMemsetD2D16_v2,
        (CUdeviceptr dstDevice, size_t dstPitch, unsigned short us, size_t Width, size_t Height),
        (dstDevice, dstPitch, us, Width, Height))
FLAVOUR(cuMemsetD2D32Async_ptsz, cuMemsetD2D32Async,
        (CUdeviceptr dstDevice, size_t dstPitch, unsigned ui, size_t Width, size_t Height, CUstream hStream),
        (dstDevice, dstPitch, ui, Width, Height, OWN(hStream)))
FLAVOUR(cuMemsetD2D32_v2_ptds, cuMemsetD2D32_v2,
        (CUdeviceptr dstDevice, size_t dstPitch, unsigned ui, size_t Width, size_t Height),
        (dstDevice, dstPitch, ui, Width, Height))
FLAVOUR(cuMemsetD2D8Async_ptsz, cuMemsetD2D8Async,
        (CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc, size_t Width, size_t Height, CUstream hStream),
        (dstDevice, dstPitch, uc, Width, Height, OWN(hStream)))
FLAVOUR(cuMemsetD2D8_v2_ptds, cuMemsetD2D8_v2,
        (CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc, size_t Width, size_t Height),
        (dstDevice, dstPitch, uc, Width, Height))
FLAVOUR(cuMemsetD32Async_ptsz, cuMemsetD32Async, (CUdeviceptr dstDevice, unsigned ui, size_t N, CUstream hStream),
        (dstDevice, ui, N, OWN(hStream)))
FLAVOUR(cuMemsetD32_v2_ptds, cuMemsetD32_v2, (CUdeviceptr dstDevice, unsigned ui, size_t N), (dstDevice, ui, N))
FLAVOUR(cuMemsetD8Async_ptsz, cuMemsetD8Async, (CUdeviceptr dstDevice, unsigned char uc, size_t N, CUstream hStream),
        (dstDevice, uc, N, OWN(hStream)))
FLAVOUR(cuMemsetD8_v2_ptds, cuMemsetD8_v2, (CUdeviceptr dstDevice, unsigned char uc, size_t N), (dstDevice, uc, N))
FLAVOUR(cuStreamAddCallback_ptsz, cuStreamAddCallback,
        (CUstream hStream, CUstreamCallback callback, void *userData, unsigned flags),
        (OWN(hStream), callback, userData, flags))
FLAVOUR(cuStreamBeginCaptureToGraph_ptsz, cuStreamBeginCaptureToGraph,
        (CUstream hStream, CUgraph hGraph, const CUgraphNode *dependencies, const CUgraphEdgeData *dependencyData,
         size_t numDependencies, CUstreamCaptureMode mode),
        (OWN(hStream), hGraph, dependencies, dependencyData, numDependencies, mode))
FLAVOUR(cuStreamBeginCapture_ptsz, cuStreamBeginCapture, (CUstream hStream), (OWN(hStream)))
FLAVOUR(cuStreamBeginCapture_v2_ptsz, cuStreamBeginCapture_v2, (CUstream hStream, CUstreamCaptureMode mode),
        (OWN(hStream), mode))
FLAVOUR(cuStreamEndCapture_ptsz, cuStreamEndCapture, (CUstream hStream, CUgraph *phGraph), (OWN(hStream), phGraph))
FLAVOUR(cuStreamGetCaptureInfo_ptsz, cuStreamGetCaptureInfo,
        (CUstream hStream, CUstreamCaptureStatus *captureStatus_out, cuuint64_t *id_out),
        (OWN(hStream), captureStatus_out, id_out))
FLAVOUR(cuStreamGetCaptureInfo_v2_ptsz, cuStreamGetCaptureInfo_v2,
        (CUstream hStream, CUstreamCaptureStatus *captureStatus_out, cuuint64_t *id_out, CUgraph *graph_out,
         const CUgraphNode **dependencies_out, size_t *numDependencies_out),
        (OWN(hStream), captureStatus_out, id_out, graph_out, dependencies_out, numDependencies_out))
FLAVOUR(cuStreamGetCaptureInfo_v3_ptsz, cuStreamGetCaptureInfo_v3,
        (CUstream hStream, CUstreamCaptureStatus *captureStatus_out, cuuint64_t *id_out, CUgraph *graph_out,
         const CUgraphNode **dependencies_out, const CUgraphEdgeData **edgeData_out, size_t *numDependencies_out),
        (OWN(hStream), captureStatus_out, id_out, graph_out, dependencies_out, edgeData_out, numDependencies_out))
FLAVOUR(cuStreamGetCtx_ptsz, cuStreamGetCtx, (CUstream hStream, CUcontext *pctx), (OWN(hStream), pctx))
FLAVOUR(cuStreamGetFlags_ptsz, cuStreamGetFlags, (CUstream hStream, unsigned *flags), (OWN(hStream), flags))
FLAVOUR(cuStreamGetId_ptsz, cuStreamGetId, (CUstream hStream, unsigned long long *streamId), (OWN(hStream), streamId))
FLAVOUR(cuStreamGetPriority_ptsz, cuStreamGetPriority, (CUstream hStream, int *priority), (OWN(hStream), priority))
FLAVOUR(cuStreamIsCapturing_ptsz, cuStreamIsCapturing, (CUstream hStream, CUstreamCaptureStatus *captureStatus),
        (OWN(hStream), captureStatus))
FLAVOUR(cuStreamQuery_ptsz, cuStreamQuery, (CUstream hStream), (OWN(hStream)))
FLAVOUR(cuStreamSynchronize_ptsz, cuStreamSynchronize, (CUstream hStream), (OWN(hStream)))
FLAVOUR(cuStreamUpdateCaptureDependencies_ptsz, cuStreamUpdateCaptureDependencies,
        (CUstream hStream, CUgraphNode *dependencies, size_t numDependencies, unsigned flags),
        (OWN(hStream), dependencies, numDependencies, flags))
FLAVOUR(cuStreamWaitEvent_ptsz, cuStreamWaitEvent, (CUstream hStream, CUevent hEvent, unsigned Flags),
        (OWN(hStream), hEvent, Flags))

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **params, void **extra);
SIM_API CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction f, void **params, void **extra)
{
	if (!config)
		return CUDA_ERROR_INVALID_VALUE;
	CUlaunchConfig own = *config;

	own.hStream = OWN(config->hStream);
	return cuLaunchKernelEx(&own, f, params, extra);
}

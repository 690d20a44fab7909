/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts: settings that are only stored or have one possible value, and events over all of a context's work. */
#include "simgpu/cuda/base/call.h"
#include "simgpu/cuda/modules/modules.h"

CUresult cuCtxPushCurrent_v2(CUcontext context);
CUresult cuCtxPopCurrent_v2(CUcontext *context);
CUresult cuEventRecord(CUevent event, CUstream stream);
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags);

SIM_API CUresult cuCtxSetFlags(unsigned flags)
{
	SIM_CALL_CONTEXT(context);
	context->flags = flags;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxGetSharedMemConfig(CUsharedconfig *config)
{
	SIM_CALL_CONTEXT(context);
	(void)context;
	if (!config)
		return CUDA_ERROR_INVALID_VALUE;
	*config = CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxSetSharedMemConfig(CUsharedconfig config)
{
	SIM_CALL_CONTEXT(context);
	(void)context;
	return config <= CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_API CUresult cuFuncSetSharedMemConfig(CUfunction function, CUsharedconfig config)
{
	SIM_CALL();
	(void)config;
	return SIM_HANDLE(function, SIM_TAG_FUNCTION) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

SIM_API CUresult cuCtxResetPersistingL2Cache(void)
{
	SIM_CALL_CONTEXT(context);
	(void)context;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceGetExecAffinitySupport(int *supported, CUexecAffinityType type, CUdevice device)
{
	SIM_CALL();
	if (!supported || type >= CU_EXEC_AFFINITY_TYPE_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_device_get(device))
		return CUDA_ERROR_INVALID_DEVICE;
	*supported = 0; /* only under MPS */
	return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxGetExecAffinity(CUexecAffinityParam *param, CUexecAffinityType type)
{
	SIM_CALL_CONTEXT(context);
	(void)context;
	(void)param;
	(void)type;
	return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
}

/* NULL = the current context. Undone by cuCtxPopCurrent_v2(). */
static CUresult enter(CUcontext context)
{
	context = context ? context : sim_current();
	return SIM_HANDLE(context, SIM_TAG_CONTEXT) ? cuCtxPushCurrent_v2(context) : CUDA_ERROR_INVALID_CONTEXT;
}

/* A context's operations run in submission order, so its legacy stream stands for all of its streams. */
SIM_API CUresult cuCtxRecordEvent(CUcontext context, CUevent event)
{
	SIM_CALL();
	CUresult r = enter(context);

	if (r == CUDA_SUCCESS) {
		r = cuEventRecord(event, CU_STREAM_LEGACY);
		cuCtxPopCurrent_v2(NULL);
	}
	return r;
}

SIM_API CUresult cuCtxWaitEvent(CUcontext context, CUevent event)
{
	SIM_CALL();
	CUresult r = enter(context);

	if (r == CUDA_SUCCESS) {
		r = cuStreamWaitEvent(CU_STREAM_LEGACY, event, 0);
		cuCtxPopCurrent_v2(NULL);
	}
	return r;
}

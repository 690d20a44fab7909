/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every symbol of a real driver that is not modelled: there, and not supported. Weak, so that a call that another file
 * defines is that file's; what is left over answers as a driver does for a feature its device lacks.
 */
#include "simgpu/cuda/base/call.h"

static CUresult not_supported(void)
{
	return sim_process() ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_NOT_INITIALIZED;
}

#define REST(symbol)                                                                                                   \
	__attribute__((weak)) SIM_API CUresult symbol(void)                                                            \
	{                                                                                                              \
		return not_supported();                                                                                \
	}
#include "rest_cuda.inc"

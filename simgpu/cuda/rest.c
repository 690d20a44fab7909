/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every symbol of a real driver that is not modelled: present, but not supported. The definitions are weak, so that
 * another file's definition takes precedence; the rest return the driver's error for a feature that its device lacks.
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

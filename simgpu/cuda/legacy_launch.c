/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Launches as before CUDA 4: block shape, shared memory and parameters are set on the function, and a launch names the
 * grid. Long deprecated, but PyCUDA still sets its blocks so. Textures are not modelled.
 */
#include <stdlib.h>
#include <string.h>

#include "simgpu/cuda/base/call.h"
#include "simgpu/cuda/modules/modules.h"

#define PARAMETER_BYTES 4096 /* limit of a kernel's parameters */

struct sim_function_state {
	unsigned block[3];
	unsigned shared_bytes;
	unsigned parameter_bytes;
	unsigned char parameters[PARAMETER_BYTES];
};

CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                        unsigned shared, CUstream stream, void **params, void **extra);

/* The state of a live function; NULL: not a function, or out of memory. */
static struct sim_function_state *state_of(CUfunction f)
{
	if (!SIM_HANDLE(f, SIM_TAG_FUNCTION))
		return NULL;
	if (!f->state && (f->state = calloc(1, sizeof(*f->state))))
		f->state->block[0] = f->state->block[1] = f->state->block[2] = 1;
	return f->state;
}

SIM_API CUresult cuFuncSetBlockShape(CUfunction f, int x, int y, int z)
{
	SIM_CALL();
	struct sim_function_state *state = state_of(f);

	if (!state)
		return CUDA_ERROR_INVALID_HANDLE;
	if (x < 1 || y < 1 || z < 1)
		return CUDA_ERROR_INVALID_VALUE;
	state->block[0] = (unsigned)x;
	state->block[1] = (unsigned)y;
	state->block[2] = (unsigned)z;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuFuncSetSharedSize(CUfunction f, unsigned bytes)
{
	SIM_CALL();
	struct sim_function_state *state = state_of(f);

	if (!state)
		return CUDA_ERROR_INVALID_HANDLE;
	state->shared_bytes = bytes;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuParamSetSize(CUfunction f, unsigned bytes)
{
	SIM_CALL();
	struct sim_function_state *state = state_of(f);

	if (!state)
		return CUDA_ERROR_INVALID_HANDLE;
	if (bytes > PARAMETER_BYTES)
		return CUDA_ERROR_INVALID_VALUE;
	state->parameter_bytes = bytes;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuParamSetv(CUfunction f, int offset, void *value, unsigned bytes)
{
	SIM_CALL();
	struct sim_function_state *state = state_of(f);

	if (!state)
		return CUDA_ERROR_INVALID_HANDLE;
	if (offset < 0 || !value || bytes > PARAMETER_BYTES || (unsigned)offset > PARAMETER_BYTES - bytes)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(state->parameters + offset, value, bytes);
	return CUDA_SUCCESS;
}

SIM_API CUresult cuParamSeti(CUfunction f, int offset, unsigned value)
{
	return cuParamSetv(f, offset, &value, sizeof(value));
}

SIM_API CUresult cuParamSetf(CUfunction f, int offset, float value)
{
	return cuParamSetv(f, offset, &value, sizeof(value));
}

SIM_API CUresult cuLaunchGridAsync(CUfunction f, int width, int height, CUstream stream)
{
	SIM_CALL();
	struct sim_function_state *state = state_of(f);

	if (!state)
		return CUDA_ERROR_INVALID_HANDLE;
	if (width < 1 || height < 1)
		return CUDA_ERROR_INVALID_VALUE;
	size_t bytes = state->parameter_bytes;
	void *extra[] = { CU_LAUNCH_PARAM_BUFFER_POINTER, state->parameters, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
		          CU_LAUNCH_PARAM_END };

	return cuLaunchKernel(f, (unsigned)width, (unsigned)height, 1, state->block[0], state->block[1],
	                      state->block[2], state->shared_bytes, stream, NULL, extra);
}

SIM_API CUresult cuLaunchGrid(CUfunction f, int width, int height)
{
	return cuLaunchGridAsync(f, width, height, NULL);
}

SIM_API CUresult cuLaunch(CUfunction f)
{
	return cuLaunchGridAsync(f, 1, 1, NULL);
}

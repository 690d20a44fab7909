/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The linker. No code is linked: the inputs are laid side by side in one fat binary, marked so that a module made of it
 * has the kernels of all of them. Files are read when they are added, as the driver does.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "simgpu/cuda/base/call.h"
#include "simgpu/cuda/images/images.h"
#include "simgpu/cuda/modules/modules.h"

#define TAG UINT32_C(0x4c4e4b31)

struct CUlinkState_st {
	uint32_t tag;
	uint8_t *bytes; /* the fat binary so far, its header included */
	size_t used;
};

static bool append(struct CUlinkState_st *s, const void *data, size_t bytes)
{
	uint8_t *grown = realloc(s->bytes, s->used + bytes);

	if (!grown)
		return false;
	s->bytes = grown;
	if (data)
		memcpy(grown + s->used, data, bytes);
	else
		memset(grown + s->used, 0, bytes);
	s->used += bytes;
	return true;
}

SIM_API CUresult cuLinkCreate_v2(unsigned count, CUjit_option *options, void **values, CUlinkState *state)
{
	SIM_CALL_CONTEXT(context);
	struct sim_fat_header header = { .magic = SIM_FAT, .version = 1, .header_bytes = sizeof(header) };

	(void)context;
	if (!state || (count && (!options || !values)))
		return CUDA_ERROR_INVALID_VALUE;
	struct CUlinkState_st *s = calloc(1, sizeof(*s));

	if (!s || !append(s, &header, sizeof(header))) {
		free(s);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	s->tag = TAG;
	*state = s;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuLinkCreate(unsigned count, CUjit_option *options, void **values, CUlinkState *state)
{
	return cuLinkCreate_v2(count, options, values, state);
}

SIM_API CUresult cuLinkAddData_v2(CUlinkState state, CUjitInputType type, void *data, size_t bytes, const char *name,
                                  unsigned count, CUjit_option *options, void **values)
{
	SIM_CALL();
	(void)name;
	(void)count;
	(void)options;
	(void)values;
	if (!SIM_HANDLE(state, TAG))
		return CUDA_ERROR_INVALID_HANDLE;
	if (!data || bytes == 0 || type >= CU_JIT_NUM_INPUT_TYPES)
		return CUDA_ERROR_INVALID_VALUE;
	bool elf = bytes > 4 && memcmp(data, "\177ELF", 4) == 0;

	if (type == CU_JIT_INPUT_PTX && elf)
		return CUDA_ERROR_INVALID_PTX;
	if ((type == CU_JIT_INPUT_CUBIN || type == CU_JIT_INPUT_OBJECT) && !elf)
		return CUDA_ERROR_INVALID_IMAGE;
	if (type != CU_JIT_INPUT_PTX && !elf)
		return CUDA_SUCCESS;    /* libraries of relocatable code: their contents are not needed */
	size_t padding = 8 - bytes % 8; /* one byte at least: PTX is a text */
	struct sim_fat_entry entry = { .kind = elf ? SIM_FAT_ELF : SIM_FAT_PTX,
		                       .version = 0x101,
		                       .header_bytes = sizeof(entry),
		                       .bytes = bytes + padding,
		                       .flags = SIM_FAT_LINKED };

	if (!append(state, &entry, sizeof(entry)) || !append(state, data, bytes) || !append(state, NULL, padding))
		return CUDA_ERROR_OUT_OF_MEMORY;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuLinkAddData(CUlinkState state, CUjitInputType type, void *data, size_t bytes, const char *name,
                               unsigned count, CUjit_option *options, void **values)
{
	return cuLinkAddData_v2(state, type, data, bytes, name, count, options, values);
}

SIM_API CUresult cuLinkAddFile_v2(CUlinkState state, CUjitInputType type, const char *path, unsigned count,
                                  CUjit_option *options, void **values)
{
	SIM_CALL();
	size_t bytes = 0;

	if (!path)
		return CUDA_ERROR_INVALID_VALUE;
	void *data = sim_file_bytes(path, &bytes);
	CUresult r = data ? cuLinkAddData_v2(state, type, data, bytes, path, count, options, values)
	                  : CUDA_ERROR_FILE_NOT_FOUND;

	free(data);
	return r;
}

SIM_API CUresult cuLinkAddFile(CUlinkState state, CUjitInputType type, const char *path, unsigned count,
                               CUjit_option *options, void **values)
{
	return cuLinkAddFile_v2(state, type, path, count, options, values);
}

SIM_API CUresult cuLinkComplete(CUlinkState state, void **image, size_t *bytes)
{
	SIM_CALL();
	if (!SIM_HANDLE(state, TAG))
		return CUDA_ERROR_INVALID_HANDLE;
	if (!image)
		return CUDA_ERROR_INVALID_VALUE;
	((struct sim_fat_header *)state->bytes)->bytes = state->used - sizeof(struct sim_fat_header);
	*image = state->bytes;
	if (bytes)
		*bytes = state->used;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuLinkDestroy(CUlinkState state)
{
	SIM_CALL();
	if (!SIM_HANDLE(state, TAG))
		return CUDA_ERROR_INVALID_HANDLE;
	state->tag = 0;
	free(state->bytes);
	free(state);
	return CUDA_SUCCESS;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensor maps: 128 opaque bytes that a kernel reads. Arguments are checked by the documented rules, and the address is
 * stored where it can be replaced; the rest is not used.
 */
#include <string.h>

#include "simgpu/cuda/base/call.h"

struct content {
	uint64_t address;
	uint32_t type, rank;
	uint64_t dim[5];
	uint32_t box[5];
	uint32_t interleave, swizzle, l2, fill;
};

_Static_assert(sizeof(struct content) <= sizeof(CUtensorMap), "it fits the API's bytes");

static CUresult checked(const struct content *c, const cuuint64_t *strides, const cuuint32_t *steps)
{
	if (c->rank < 1 || c->rank > 5 || (c->interleave && c->rank < 3))
		return CUDA_ERROR_INVALID_VALUE;
	if (c->address % (c->interleave == CU_TENSOR_MAP_INTERLEAVE_32B ? 32 : 16))
		return CUDA_ERROR_INVALID_VALUE;
	for (uint32_t i = 0; i < c->rank; i++) {
		if (c->dim[i] == 0 || c->dim[i] > UINT64_C(1) << 32 || steps[i] == 0 || steps[i] > 8)
			return CUDA_ERROR_INVALID_VALUE;
		if (i > 0 && (strides[i - 1] % 16 || strides[i - 1] >= UINT64_C(1) << 40))
			return CUDA_ERROR_INVALID_VALUE;
	}
	return CUDA_SUCCESS;
}

static CUresult encode(CUtensorMap *map, struct content *c, const cuuint64_t *dims, const cuuint64_t *strides,
                       const cuuint32_t *steps)
{
	SIM_CALL_CONTEXT(context);
	if (sim_model_of(context)->cc_major < 9)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (!map || !dims || !steps || (c->rank > 1 && !strides) || c->rank > 5)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(c->dim, dims, c->rank * sizeof(*dims));
	CUresult r = checked(c, strides, steps);

	if (r == CUDA_SUCCESS) {
		memset(map, 0, sizeof(*map));
		memcpy(map, c, sizeof(*c));
	}
	return r;
}

SIM_API CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                                        const cuuint64_t *dims, const cuuint64_t *strides, const cuuint32_t *box,
                                        const cuuint32_t *steps, CUtensorMapInterleave interleave,
                                        CUtensorMapSwizzle swizzle, CUtensorMapL2promotion l2,
                                        CUtensorMapFloatOOBfill fill)
{
	struct content c = { (uintptr_t)address, type, rank, { 0 }, { 0 }, interleave, swizzle, l2, fill };

	if (!box || rank > 5)
		return CUDA_ERROR_INVALID_VALUE;
	for (cuuint32_t i = 0; i < rank; i++) {
		if (box[i] == 0 || box[i] > 256)
			return CUDA_ERROR_INVALID_VALUE;
		c.box[i] = box[i];
	}
	return encode(map, &c, dims, strides, steps);
}

SIM_API CUresult cuTensorMapEncodeIm2col(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                                         const cuuint64_t *dims, const cuuint64_t *strides, const int *lower,
                                         const int *upper, cuuint32_t channels, cuuint32_t pixels,
                                         const cuuint32_t *steps, CUtensorMapInterleave interleave,
                                         CUtensorMapSwizzle swizzle, CUtensorMapL2promotion l2,
                                         CUtensorMapFloatOOBfill fill)
{
	struct content c = {
		(uintptr_t)address, type, rank, { 0 }, { channels, pixels }, interleave, swizzle, l2, fill
	};

	if (!lower || !upper || rank < 3 || channels > 256 || pixels > 1024)
		return CUDA_ERROR_INVALID_VALUE;
	return encode(map, &c, dims, strides, steps);
}

SIM_API CUresult cuTensorMapReplaceAddress(CUtensorMap *map, void *address)
{
	SIM_CALL();
	uint64_t to = (uintptr_t)address;

	if (!map || to % 16)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(map, &to, sizeof(to));
	return CUDA_SUCCESS;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device memory that an allocation takes, computed because drivers do not report it: pure arithmetic, saturating.
 *
 * Above 1 MiB a driver allocates whole granules of 2 MiB; below, blocks share them in size classes. The driver reports
 * sizes of deferred-mapping arrays only. For other arrays the size is: bytes per element from the format, rows padded
 * to 512 bytes, times height, depth or layers, over all levels of a mipmap.
 */
#ifndef SLUICE_FOOTPRINT_H
#define SLUICE_FOOTPRINT_H

#include <stdbool.h>
#include <stdint.h>

#include "nativecommon/cuda_abi.h"

static inline uint64_t footprint_times(uint64_t a, uint64_t b)
{
	uint64_t product;

	return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

static inline uint64_t footprint_up(uint64_t value, uint64_t step)
{
	return value > UINT64_MAX - step ? UINT64_MAX : (value + step - 1) / step * step;
}

#define FOOTPRINT_GRANULE (UINT64_C(2) << 20)

/* Of the granules that blocks share, one per size class may be only partly filled: each context has at most so much on
 * the device beyond what footprint_block() returns. */
#define FOOTPRINT_REST (13 * FOOTPRINT_GRANULE)

/* Charging the requested size would let a program of 1.1 MiB blocks hold nearly twice its grant. */
static inline uint64_t footprint_block(uint64_t bytes)
{
	if (bytes > FOOTPRINT_GRANULE / 2)
		return footprint_up(bytes, FOOTPRINT_GRANULE);
	return bytes <= 512 ? 512 : UINT64_C(1) << (64 - __builtin_clzll(bytes - 1));
}

/* The row padding of drivers since Fermi; only a first guess, the real pitch is charged afterwards. */
static inline uint64_t footprint_pitch(uint64_t width_bytes)
{
	return footprint_up(width_bytes, 512);
}

static inline uint64_t footprint_pitched(uint64_t pitch, uint64_t height)
{
	return footprint_times(pitch, height);
}

/* Memory is bound later, by cuMemMapArrayAsync to physical memory that was charged when it was created. */
static inline bool footprint_is_deferred(const CUDA_ARRAY3D_DESCRIPTOR *desc)
{
	return desc->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING);
}

/* Bits per element of one channel, or of the whole element where the format says how many channels it has. */
static inline uint64_t footprint_bits(CUarray_format format, unsigned int channels)
{
	uint64_t n = channels ? channels : 1;

	switch (format) {
	case CU_AD_FORMAT_UNSIGNED_INT8:
	case CU_AD_FORMAT_SIGNED_INT8:
		return 8 * n;
	case CU_AD_FORMAT_UNSIGNED_INT16:
	case CU_AD_FORMAT_SIGNED_INT16:
	case CU_AD_FORMAT_HALF:
		return 16 * n;
	case CU_AD_FORMAT_UNSIGNED_INT32:
	case CU_AD_FORMAT_SIGNED_INT32:
	case CU_AD_FORMAT_FLOAT:
		return 32 * n;
	case CU_AD_FORMAT_NV12: /* 4:2:0, 8 bit */
		return 12;
	case CU_AD_FORMAT_UNORM_INT8X1:
	case CU_AD_FORMAT_SNORM_INT8X1:
	case CU_AD_FORMAT_BC2_UNORM: /* 4x4 blocks of 16 bytes */
	case CU_AD_FORMAT_BC2_UNORM_SRGB:
	case CU_AD_FORMAT_BC3_UNORM:
	case CU_AD_FORMAT_BC3_UNORM_SRGB:
	case CU_AD_FORMAT_BC5_UNORM:
	case CU_AD_FORMAT_BC5_SNORM:
	case CU_AD_FORMAT_BC6H_UF16:
	case CU_AD_FORMAT_BC6H_SF16:
	case CU_AD_FORMAT_BC7_UNORM:
	case CU_AD_FORMAT_BC7_UNORM_SRGB:
		return 8;
	case CU_AD_FORMAT_BC1_UNORM: /* 4x4 blocks of 8 bytes */
	case CU_AD_FORMAT_BC1_UNORM_SRGB:
	case CU_AD_FORMAT_BC4_UNORM:
	case CU_AD_FORMAT_BC4_SNORM:
		return 4;
	case CU_AD_FORMAT_UNORM_INT8X2:
	case CU_AD_FORMAT_SNORM_INT8X2:
	case CU_AD_FORMAT_UNORM_INT16X1:
	case CU_AD_FORMAT_SNORM_INT16X1:
		return 16;
	case CU_AD_FORMAT_UNORM_INT8X4:
	case CU_AD_FORMAT_SNORM_INT8X4:
	case CU_AD_FORMAT_UNORM_INT16X2:
	case CU_AD_FORMAT_SNORM_INT16X2:
	case CU_AD_FORMAT_UNORM_INT_101010_2:
		return 32;
	case CU_AD_FORMAT_UNORM_INT16X4:
	case CU_AD_FORMAT_SNORM_INT16X4:
		return 64;
	default: /* packed and planar video formats and later ones: the largest of them, so never too little */
		return 64 * n;
	}
}

/* `levels` 1 = a plain array. */
static inline uint64_t footprint_array(const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned int levels)
{
	uint64_t width = desc->Width, height = desc->Height ? desc->Height : 1, depth = desc->Depth ? desc->Depth : 1;
	uint64_t bits = footprint_bits(desc->Format, desc->NumChannels), total = 0;
	bool layered = desc->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);

	if (footprint_is_deferred(desc))
		return 0;
	for (unsigned int level = 0; level < levels && level < 32; level++) {
		uint64_t row = footprint_up((footprint_times(width, bits) + 7) / 8, 512);
		uint64_t bytes = footprint_times(footprint_times(row, height), depth);

		total = total + bytes < total ? UINT64_MAX : total + bytes;
		width = width > 1 ? width / 2 : 1;
		height = height > 1 ? height / 2 : 1;
		if (!layered)
			depth = depth > 1 ? depth / 2 : 1;
	}
	return footprint_block(total);
}

#endif

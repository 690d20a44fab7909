/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies and sets go through the same gate as kernels: they take GPU time, and a program that only copies would
 * otherwise exceed every cap. The estimate is learnt per call and size class, four classes to an octave.
 */
#include "interpose/compute/door.h"
#include "interpose/driver/driver.h"

static inline struct cost_shape size_class(uint64_t bytes)
{
	if (bytes < 4)
		return (struct cost_shape){ .grid = { 1 } };
	unsigned octave = 63u - (unsigned)__builtin_clzll(bytes);

	return (struct cost_shape){ .grid = { 2 + octave, (unsigned)(bytes >> (octave - 2)) & 3 } };
}

/* The driver reports the error for NULL. */
static inline uint64_t flat_bytes(const CUDA_MEMCPY2D *copy)
{
	return copy ? copy->WidthInBytes * copy->Height : 0;
}

static inline uint64_t box_bytes(const CUDA_MEMCPY3D *copy)
{
	return copy ? copy->WidthInBytes * copy->Height * copy->Depth : 0;
}

static inline uint64_t peer_box_bytes(const CUDA_MEMCPY3D_PEER *copy)
{
	return copy ? copy->WidthInBytes * copy->Height * copy->Depth : 0;
}

static inline uint64_t narrow_flat_bytes(const CUDA_MEMCPY2D_v1 *copy)
{
	return copy ? (uint64_t)copy->WidthInBytes * copy->Height : 0;
}

static inline uint64_t narrow_box_bytes(const CUDA_MEMCPY3D_v1 *copy)
{
	return copy ? (uint64_t)copy->WidthInBytes * copy->Height * copy->Depth : 0;
}

static uint64_t listed_bytes(const size_t *bytes, size_t count)
{
	uint64_t sum = 0;

	for (size_t i = 0; bytes && i < count; i++)
		sum += bytes[i];
	return sum;
}

static uint64_t listed_box_bytes(const CUDA_MEMCPY3D_BATCH_OP *copies, size_t count)
{
	uint64_t sum = 0;

	for (size_t i = 0; copies && i < count; i++)
		sum += copies[i].extent.width * copies[i].extent.height * copies[i].extent.depth;
	return sum;
}

static uint64_t listed_fabric_bytes(const CUDA_FABRIC_COPY_BATCH_OP *copies, size_t count)
{
	uint64_t sum = 0;

	for (size_t i = 0; copies && i < count; i++)
		sum += copies[i].size;
	return sum;
}

/* The address of the driver's table entry identifies the call, as a function's handle identifies a kernel. */
#define COPY(symbol, BYTES, STREAM, params, arguments)                                                                 \
	CUresult symbol params                                                                                         \
	{                                                                                                              \
		if (!driver.symbol)                                                                                    \
			return CUDA_ERROR_NOT_FOUND;                                                                   \
		struct cost_shape shape = size_class(BYTES);                                                           \
                                                                                                                       \
		return COPY_THROUGH_GATE(&driver.symbol, &shape, STREAM, driver.symbol arguments);                     \
	}

COPY(cuMemcpy, bytes, NULL, (CUdeviceptr to, CUdeviceptr from, size_t bytes), (to, from, bytes))
COPY(cuMemcpy2DAsync_v2, flat_bytes(copy), stream, (const CUDA_MEMCPY2D *copy, CUstream stream), (copy, stream))
COPY(cuMemcpy2DAsync_v2_ptsz, flat_bytes(copy), own_stream(stream), (const CUDA_MEMCPY2D *copy, CUstream stream),
     (copy, stream))
COPY(cuMemcpy2DUnaligned_v2, flat_bytes(copy), NULL, (const CUDA_MEMCPY2D *copy), (copy))
COPY(cuMemcpy2DUnaligned_v2_ptds, flat_bytes(copy), own_stream(NULL), (const CUDA_MEMCPY2D *copy), (copy))
COPY(cuMemcpy2D_v2, flat_bytes(copy), NULL, (const CUDA_MEMCPY2D *copy), (copy))
COPY(cuMemcpy2D_v2_ptds, flat_bytes(copy), own_stream(NULL), (const CUDA_MEMCPY2D *copy), (copy))
COPY(cuMemcpy3DAsync_v2, box_bytes(copy), stream, (const CUDA_MEMCPY3D *copy, CUstream stream), (copy, stream))
COPY(cuMemcpy3DAsync_v2_ptsz, box_bytes(copy), own_stream(stream), (const CUDA_MEMCPY3D *copy, CUstream stream),
     (copy, stream))
COPY(cuMemcpy3DPeer, peer_box_bytes(copy), NULL, (const CUDA_MEMCPY3D_PEER *copy), (copy))
COPY(cuMemcpy3DPeerAsync, peer_box_bytes(copy), stream, (const CUDA_MEMCPY3D_PEER *copy, CUstream stream),
     (copy, stream))
COPY(cuMemcpy3DPeerAsync_ptsz, peer_box_bytes(copy), own_stream(stream),
     (const CUDA_MEMCPY3D_PEER *copy, CUstream stream), (copy, stream))
COPY(cuMemcpy3DPeer_ptds, peer_box_bytes(copy), own_stream(NULL), (const CUDA_MEMCPY3D_PEER *copy), (copy))
COPY(cuMemcpy3D_v2, box_bytes(copy), NULL, (const CUDA_MEMCPY3D *copy), (copy))
COPY(cuMemcpy3D_v2_ptds, box_bytes(copy), own_stream(NULL), (const CUDA_MEMCPY3D *copy), (copy))
COPY(cuMemcpyAsync, bytes, stream, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),
     (to, from, bytes, stream))
COPY(cuMemcpyAsync_ptsz, bytes, own_stream(stream), (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),
     (to, from, bytes, stream))
COPY(cuMemcpyAtoA_v2, bytes, NULL, (CUarray to, size_t to_offset, CUarray from, size_t from_offset, size_t bytes),
     (to, to_offset, from, from_offset, bytes))
COPY(cuMemcpyAtoA_v2_ptds, bytes, own_stream(NULL),
     (CUarray to, size_t to_offset, CUarray from, size_t from_offset, size_t bytes),
     (to, to_offset, from, from_offset, bytes))
COPY(cuMemcpyAtoD_v2, bytes, NULL, (CUdeviceptr to, CUarray from, size_t from_offset, size_t bytes),
     (to, from, from_offset, bytes))
COPY(cuMemcpyAtoD_v2_ptds, bytes, own_stream(NULL), (CUdeviceptr to, CUarray from, size_t from_offset, size_t bytes),
     (to, from, from_offset, bytes))
COPY(cuMemcpyAtoHAsync_v2, bytes, stream, (void *to, CUarray from, size_t from_offset, size_t bytes, CUstream stream),
     (to, from, from_offset, bytes, stream))
COPY(cuMemcpyAtoHAsync_v2_ptsz, bytes, own_stream(stream),
     (void *to, CUarray from, size_t from_offset, size_t bytes, CUstream stream),
     (to, from, from_offset, bytes, stream))
COPY(cuMemcpyAtoH_v2, bytes, NULL, (void *to, CUarray from, size_t from_offset, size_t bytes),
     (to, from, from_offset, bytes))
COPY(cuMemcpyAtoH_v2_ptds, bytes, own_stream(NULL), (void *to, CUarray from, size_t from_offset, size_t bytes),
     (to, from, from_offset, bytes))
COPY(cuMemcpyDtoA_v2, bytes, NULL, (CUarray to, size_t to_offset, CUdeviceptr from, size_t bytes),
     (to, to_offset, from, bytes))
COPY(cuMemcpyDtoA_v2_ptds, bytes, own_stream(NULL), (CUarray to, size_t to_offset, CUdeviceptr from, size_t bytes),
     (to, to_offset, from, bytes))
COPY(cuMemcpyDtoDAsync_v2, bytes, stream, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),
     (to, from, bytes, stream))
COPY(cuMemcpyDtoDAsync_v2_ptsz, bytes, own_stream(stream),
     (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream), (to, from, bytes, stream))
COPY(cuMemcpyDtoD_v2, bytes, NULL, (CUdeviceptr to, CUdeviceptr from, size_t bytes), (to, from, bytes))
COPY(cuMemcpyDtoD_v2_ptds, bytes, own_stream(NULL), (CUdeviceptr to, CUdeviceptr from, size_t bytes), (to, from, bytes))
COPY(cuMemcpyDtoHAsync_v2, bytes, stream, (void *to, CUdeviceptr from, size_t bytes, CUstream stream),
     (to, from, bytes, stream))
COPY(cuMemcpyDtoHAsync_v2_ptsz, bytes, own_stream(stream), (void *to, CUdeviceptr from, size_t bytes, CUstream stream),
     (to, from, bytes, stream))
COPY(cuMemcpyDtoH_v2, bytes, NULL, (void *to, CUdeviceptr from, size_t bytes), (to, from, bytes))
COPY(cuMemcpyDtoH_v2_ptds, bytes, own_stream(NULL), (void *to, CUdeviceptr from, size_t bytes), (to, from, bytes))
COPY(cuMemcpyHtoAAsync_v2, bytes, stream,
     (CUarray to, size_t to_offset, const void *from, size_t bytes, CUstream stream),
     (to, to_offset, from, bytes, stream))
COPY(cuMemcpyHtoAAsync_v2_ptsz, bytes, own_stream(stream),
     (CUarray to, size_t to_offset, const void *from, size_t bytes, CUstream stream),
     (to, to_offset, from, bytes, stream))
COPY(cuMemcpyHtoA_v2, bytes, NULL, (CUarray to, size_t to_offset, const void *from, size_t bytes),
     (to, to_offset, from, bytes))
COPY(cuMemcpyHtoA_v2_ptds, bytes, own_stream(NULL), (CUarray to, size_t to_offset, const void *from, size_t bytes),
     (to, to_offset, from, bytes))
COPY(cuMemcpyHtoDAsync_v2, bytes, stream, (CUdeviceptr to, const void *from, size_t bytes, CUstream stream),
     (to, from, bytes, stream))
COPY(cuMemcpyHtoDAsync_v2_ptsz, bytes, own_stream(stream),
     (CUdeviceptr to, const void *from, size_t bytes, CUstream stream), (to, from, bytes, stream))
COPY(cuMemcpyHtoD_v2, bytes, NULL, (CUdeviceptr to, const void *from, size_t bytes), (to, from, bytes))
COPY(cuMemcpyHtoD_v2_ptds, bytes, own_stream(NULL), (CUdeviceptr to, const void *from, size_t bytes), (to, from, bytes))
COPY(cuMemcpyPeer, bytes, NULL,
     (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes),
     (to, to_context, from, from_context, bytes))
COPY(cuMemcpyPeerAsync, bytes, stream,
     (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes, CUstream stream),
     (to, to_context, from, from_context, bytes, stream))
COPY(cuMemcpyPeerAsync_ptsz, bytes, own_stream(stream),
     (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes, CUstream stream),
     (to, to_context, from, from_context, bytes, stream))
COPY(cuMemcpyPeer_ptds, bytes, own_stream(NULL),
     (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes),
     (to, to_context, from, from_context, bytes))
COPY(cuMemcpy_ptds, bytes, own_stream(NULL), (CUdeviceptr to, CUdeviceptr from, size_t bytes), (to, from, bytes))
COPY(cuMemsetD16Async, count * 2, stream, (CUdeviceptr to, unsigned short value, size_t count, CUstream stream),
     (to, value, count, stream))
COPY(cuMemsetD16Async_ptsz, count * 2, own_stream(stream),
     (CUdeviceptr to, unsigned short value, size_t count, CUstream stream), (to, value, count, stream))
COPY(cuMemsetD16_v2, count * 2, NULL, (CUdeviceptr to, unsigned short value, size_t count), (to, value, count))
COPY(cuMemsetD16_v2_ptds, count * 2, own_stream(NULL), (CUdeviceptr to, unsigned short value, size_t count),
     (to, value, count))
COPY(cuMemsetD2D16Async, width *height * 2, stream,
     (CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height, CUstream stream),
     (to, pitch, value, width, height, stream))
COPY(cuMemsetD2D16Async_ptsz, width *height * 2, own_stream(stream),
     (CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height, CUstream stream),
     (to, pitch, value, width, height, stream))
COPY(cuMemsetD2D16_v2, width *height * 2, NULL,
     (CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height),
     (to, pitch, value, width, height))
COPY(cuMemsetD2D16_v2_ptds, width *height * 2, own_stream(NULL),
     (CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height),
     (to, pitch, value, width, height))
COPY(cuMemsetD2D32Async, width *height * 4, stream,
     (CUdeviceptr to, size_t pitch, unsigned value, size_t width, size_t height, CUstream stream),
     (to, pitch, value, width, height, stream))
COPY(cuMemsetD2D32Async_ptsz, width *height * 4, own_stream(stream),
     (CUdeviceptr to, size_t pitch, unsigned value, size_t width, size_t height, CUstream stream),
     (to, pitch, value, width, height, stream))
COPY(cuMemsetD2D32_v2, width *height * 4, NULL,
     (CUdeviceptr to, size_t pitch, unsigned value, size_t width, size_t height), (to, pitch, value, width, height))
COPY(cuMemsetD2D32_v2_ptds, width *height * 4, own_stream(NULL),
     (CUdeviceptr to, size_t pitch, unsigned value, size_t width, size_t height), (to, pitch, value, width, height))
COPY(cuMemsetD2D8Async, width *height, stream,
     (CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height, CUstream stream),
     (to, pitch, value, width, height, stream))
COPY(cuMemsetD2D8Async_ptsz, width *height, own_stream(stream),
     (CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height, CUstream stream),
     (to, pitch, value, width, height, stream))
COPY(cuMemsetD2D8_v2, width *height, NULL,
     (CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height),
     (to, pitch, value, width, height))
COPY(cuMemsetD2D8_v2_ptds, width *height, own_stream(NULL),
     (CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height),
     (to, pitch, value, width, height))
COPY(cuMemsetD32Async, count * 4, stream, (CUdeviceptr to, unsigned value, size_t count, CUstream stream),
     (to, value, count, stream))
COPY(cuMemsetD32Async_ptsz, count * 4, own_stream(stream),
     (CUdeviceptr to, unsigned value, size_t count, CUstream stream), (to, value, count, stream))
COPY(cuMemsetD32_v2, count * 4, NULL, (CUdeviceptr to, unsigned value, size_t count), (to, value, count))
COPY(cuMemsetD32_v2_ptds, count * 4, own_stream(NULL), (CUdeviceptr to, unsigned value, size_t count),
     (to, value, count))
COPY(cuMemsetD8Async, count, stream, (CUdeviceptr to, unsigned char value, size_t count, CUstream stream),
     (to, value, count, stream))
COPY(cuMemsetD8Async_ptsz, count, own_stream(stream),
     (CUdeviceptr to, unsigned char value, size_t count, CUstream stream), (to, value, count, stream))
COPY(cuMemsetD8_v2, count, NULL, (CUdeviceptr to, unsigned char value, size_t count), (to, value, count))
COPY(cuMemsetD8_v2_ptds, count, own_stream(NULL), (CUdeviceptr to, unsigned char value, size_t count),
     (to, value, count))

/* The forms with 32-bit sizes, which a driver may still export under the plain names, and batches of copies. */
COPY(cuMemcpy2D, narrow_flat_bytes(copy), NULL, (const CUDA_MEMCPY2D_v1 *copy), (copy))
COPY(cuMemcpy2DAsync, narrow_flat_bytes(copy), stream, (const CUDA_MEMCPY2D_v1 *copy, CUstream stream), (copy, stream))
COPY(cuMemcpy2DUnaligned, narrow_flat_bytes(copy), NULL, (const CUDA_MEMCPY2D_v1 *copy), (copy))
COPY(cuMemcpy3D, narrow_box_bytes(copy), NULL, (const CUDA_MEMCPY3D_v1 *copy), (copy))
COPY(cuMemcpy3DAsync, narrow_box_bytes(copy), stream, (const CUDA_MEMCPY3D_v1 *copy, CUstream stream), (copy, stream))
COPY(cuMemcpyAtoA, bytes, NULL,
     (CUarray to, unsigned int to_offset, CUarray from, unsigned int from_offset, unsigned int bytes),
     (to, to_offset, from, from_offset, bytes))
COPY(cuMemcpyAtoD, bytes, NULL, (CUdeviceptr_v1 to, CUarray from, unsigned int from_offset, unsigned int bytes),
     (to, from, from_offset, bytes))
COPY(cuMemcpyAtoH, bytes, NULL, (void *to, CUarray from, unsigned int from_offset, unsigned int bytes),
     (to, from, from_offset, bytes))
COPY(cuMemcpyAtoHAsync, bytes, stream,
     (void *to, CUarray from, unsigned int from_offset, unsigned int bytes, CUstream stream),
     (to, from, from_offset, bytes, stream))
COPY(cuMemcpyDtoA, bytes, NULL, (CUarray to, unsigned int to_offset, CUdeviceptr_v1 from, unsigned int bytes),
     (to, to_offset, from, bytes))
COPY(cuMemcpyDtoD, bytes, NULL, (CUdeviceptr_v1 to, CUdeviceptr_v1 from, unsigned int bytes), (to, from, bytes))
COPY(cuMemcpyDtoDAsync, bytes, stream, (CUdeviceptr_v1 to, CUdeviceptr_v1 from, unsigned int bytes, CUstream stream),
     (to, from, bytes, stream))
COPY(cuMemcpyDtoH, bytes, NULL, (void *to, CUdeviceptr_v1 from, unsigned int bytes), (to, from, bytes))
COPY(cuMemcpyDtoHAsync, bytes, stream, (void *to, CUdeviceptr_v1 from, unsigned int bytes, CUstream stream),
     (to, from, bytes, stream))
COPY(cuMemcpyHtoA, bytes, NULL, (CUarray to, unsigned int to_offset, const void *from, unsigned int bytes),
     (to, to_offset, from, bytes))
COPY(cuMemcpyHtoAAsync, bytes, stream,
     (CUarray to, unsigned int to_offset, const void *from, unsigned int bytes, CUstream stream),
     (to, to_offset, from, bytes, stream))
COPY(cuMemcpyHtoD, bytes, NULL, (CUdeviceptr_v1 to, const void *from, unsigned int bytes), (to, from, bytes))
COPY(cuMemcpyHtoDAsync, bytes, stream, (CUdeviceptr_v1 to, const void *from, unsigned int bytes, CUstream stream),
     (to, from, bytes, stream))
COPY(cuMemsetD16, (uint64_t)count * 2, NULL, (CUdeviceptr_v1 to, unsigned short value, unsigned int count),
     (to, value, count))
COPY(cuMemsetD2D16, (uint64_t)width *height * 2, NULL,
     (CUdeviceptr_v1 to, unsigned int pitch, unsigned short value, unsigned int width, unsigned int height),
     (to, pitch, value, width, height))
COPY(cuMemsetD2D32, (uint64_t)width *height * 4, NULL,
     (CUdeviceptr_v1 to, unsigned int pitch, unsigned value, unsigned int width, unsigned int height),
     (to, pitch, value, width, height))
COPY(cuMemsetD2D8, (uint64_t)width *height, NULL,
     (CUdeviceptr_v1 to, unsigned int pitch, unsigned char value, unsigned int width, unsigned int height),
     (to, pitch, value, width, height))
COPY(cuMemsetD32, (uint64_t)count * 4, NULL, (CUdeviceptr_v1 to, unsigned value, unsigned int count),
     (to, value, count))
COPY(cuMemsetD8, count, NULL, (CUdeviceptr_v1 to, unsigned char value, unsigned int count), (to, value, count))
COPY(cuMemcpyBatchAsync, listed_bytes(bytes, count), stream,
     (CUdeviceptr * to, CUdeviceptr *from, size_t *bytes, size_t count, CUmemcpyAttributes *attributes,
      size_t *attribute_starts, size_t attribute_count, size_t *fail_index, CUstream stream),
     (to, from, bytes, count, attributes, attribute_starts, attribute_count, fail_index, stream))
COPY(cuMemcpyBatchAsync_ptsz, listed_bytes(bytes, count), own_stream(stream),
     (CUdeviceptr * to, CUdeviceptr *from, size_t *bytes, size_t count, CUmemcpyAttributes *attributes,
      size_t *attribute_starts, size_t attribute_count, size_t *fail_index, CUstream stream),
     (to, from, bytes, count, attributes, attribute_starts, attribute_count, fail_index, stream))
COPY(cuMemcpyBatchAsync_v2, listed_bytes(bytes, count), stream,
     (const CUdeviceptr *to, const CUdeviceptr *from, const size_t *bytes, size_t count, CUmemcpyAttributes *attributes,
      size_t *attribute_starts, size_t attribute_count, CUstream stream),
     (to, from, bytes, count, attributes, attribute_starts, attribute_count, stream))
COPY(cuMemcpyBatchAsync_v2_ptsz, listed_bytes(bytes, count), own_stream(stream),
     (const CUdeviceptr *to, const CUdeviceptr *from, const size_t *bytes, size_t count, CUmemcpyAttributes *attributes,
      size_t *attribute_starts, size_t attribute_count, CUstream stream),
     (to, from, bytes, count, attributes, attribute_starts, attribute_count, stream))
COPY(cuMemcpy3DBatchAsync, listed_box_bytes(copies, count), stream,
     (size_t count, CUDA_MEMCPY3D_BATCH_OP *copies, size_t *fail_index, unsigned long long flags, CUstream stream),
     (count, copies, fail_index, flags, stream))
COPY(cuMemcpy3DBatchAsync_ptsz, listed_box_bytes(copies, count), own_stream(stream),
     (size_t count, CUDA_MEMCPY3D_BATCH_OP *copies, size_t *fail_index, unsigned long long flags, CUstream stream),
     (count, copies, fail_index, flags, stream))
COPY(cuMemcpy3DBatchAsync_v2, listed_box_bytes(copies, count), stream,
     (size_t count, CUDA_MEMCPY3D_BATCH_OP *copies, unsigned long long flags, CUstream stream),
     (count, copies, flags, stream))
COPY(cuMemcpy3DBatchAsync_v2_ptsz, listed_box_bytes(copies, count), own_stream(stream),
     (size_t count, CUDA_MEMCPY3D_BATCH_OP *copies, unsigned long long flags, CUstream stream),
     (count, copies, flags, stream))

/* CUDA 13.2 and later: one copy with the attributes of a batch entry, and copies to other nodes, which read or write
 * this GPU's memory at this end. */
COPY(cuMemcpyWithAttributesAsync, bytes, stream,
     (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUmemcpyAttributes *attributes, CUstream stream),
     (to, from, bytes, attributes, stream))
COPY(cuMemcpyWithAttributesAsync_ptsz, bytes, own_stream(stream),
     (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUmemcpyAttributes *attributes, CUstream stream),
     (to, from, bytes, attributes, stream))
COPY(cuMemcpy3DWithAttributesAsync, listed_box_bytes(copy, 1), stream,
     (CUDA_MEMCPY3D_BATCH_OP * copy, unsigned long long flags, CUstream stream), (copy, flags, stream))
COPY(cuMemcpy3DWithAttributesAsync_ptsz, listed_box_bytes(copy, 1), own_stream(stream),
     (CUDA_MEMCPY3D_BATCH_OP * copy, unsigned long long flags, CUstream stream), (copy, flags, stream))
COPY(cuFabricCpyBatchAsync, listed_fabric_bytes(copies, count), stream,
     (size_t count, CUDA_FABRIC_COPY_BATCH_OP *copies, unsigned long long flags, CUstream stream),
     (count, copies, flags, stream))
COPY(cuFabricCpyBatchAsync_ptsz, listed_fabric_bytes(copies, count), own_stream(stream),
     (size_t count, CUDA_FABRIC_COPY_BATCH_OP *copies, unsigned long long flags, CUstream stream),
     (count, copies, flags, stream))

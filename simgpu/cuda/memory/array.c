/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arrays and mipmapped arrays. Their layout is undocumented, so the bytes lie tightly packed; the charge is that of a
 * pitched layout: rows of whole 512 bytes, the total in whole pages.
 *
 * Sparse and deferred arrays have no memory until some is mapped to them, and cuMemMapArrayAsync is not simulated: they
 * can be created and described, but not written to.
 */
#include "simgpu/cuda/memory/memory.h"

#include <stdlib.h>

#include "nativecommon/footprint.h"
#include "simgpu/cuda/base/call.h"
#include "simgpu/cuda/graphs/graphs.h"
#include "simgpu/cuda/ranges/ranges.h"

#define ROW_BYTES UINT64_C(512)
#define MAX_WIDTH 131072 /* limits of H100 and A100, in elements: 1D and 2D */
#define MAX_HEIGHT 65536
#define MAX_DEPTH 16384
#define MAX_LEVELS 18 /* for the largest width */
#define MAPPING_ALIGNMENT (UINT64_C(64) << 10)
#define DEFERRED (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)
#define KNOWN_FLAGS 0xffu

struct CUarray_st {
	uint32_t tag;
	struct CUctx_st *context;
	CUDA_ARRAY3D_DESCRIPTOR shape;
	struct sim_range *range; /* NULL = deferred; a level has its mipmap's range */
	uint64_t offset;         /* offset in the range */
	bool level;              /* a level of a mipmapped array: only the whole array can be destroyed */
	struct CUarray_st *next;
};

struct CUmipmappedArray_st {
	uint32_t tag;
	struct CUctx_st *context;
	struct sim_range *range;
	uint64_t padded_bytes;
	unsigned levels;
	struct CUarray_st *level[MAX_LEVELS];
	struct CUmipmappedArray_st *next;
};

static struct CUarray_st *arrays; /* live arrays, under the memory lock: tells a stale handle from a valid one */
static struct CUmipmappedArray_st *mipmaps;

static uint32_t element_bytes(const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
	return (uint32_t)(footprint_bits(shape->Format, shape->NumChannels) + 7) / 8;
}

static uint64_t rows_of(const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
	return shape->Height ? shape->Height : 1;
}

static uint64_t slices_of(const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
	return shape->Depth ? shape->Depth : 1;
}

/* Dimensions are bounded before, so no product here comes near 64 bits. */
static uint64_t packed_bytes(const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
	return shape->Width * element_bytes(shape) * rows_of(shape) * slices_of(shape);
}

static uint64_t padded_bytes(const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
	return (shape->Width * element_bytes(shape) + ROW_BYTES - 1) / ROW_BYTES * ROW_BYTES * rows_of(shape) *
	       slices_of(shape);
}

static bool format_known(CUarray_format format)
{
	switch (format) {
	case CU_AD_FORMAT_UNSIGNED_INT8:
	case CU_AD_FORMAT_UNSIGNED_INT16:
	case CU_AD_FORMAT_UNSIGNED_INT32:
	case CU_AD_FORMAT_SIGNED_INT8:
	case CU_AD_FORMAT_SIGNED_INT16:
	case CU_AD_FORMAT_SIGNED_INT32:
	case CU_AD_FORMAT_HALF:
	case CU_AD_FORMAT_FLOAT:
		return true;
	default: /* normalised integers; video and block formats have layouts of their own */
		return format >= CU_AD_FORMAT_UNORM_INT8X1 && format <= CU_AD_FORMAT_SNORM_INT16X4;
	}
}

static CUresult shape_check(const CUDA_ARRAY3D_DESCRIPTOR *s)
{
	bool cube = s->Flags & CUDA_ARRAY3D_CUBEMAP, layered = s->Flags & CUDA_ARRAY3D_LAYERED;

	if (s->Width == 0 || s->Width > MAX_WIDTH || s->Height > MAX_HEIGHT || s->Depth > MAX_DEPTH ||
	    s->Flags & ~KNOWN_FLAGS)
		return CUDA_ERROR_INVALID_VALUE;
	if (s->NumChannels != 1 && s->NumChannels != 2 && s->NumChannels != 4)
		return CUDA_ERROR_INVALID_VALUE;
	if (s->Depth && !s->Height && !layered)
		return CUDA_ERROR_INVALID_VALUE;
	if (layered && !s->Depth)
		return CUDA_ERROR_INVALID_VALUE;
	if (cube && (s->Width != s->Height || s->Depth == 0 || s->Depth % 6 || (!layered && s->Depth != 6)))
		return CUDA_ERROR_INVALID_VALUE;
	return format_known(s->Format) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Adds a record to the list. With the lock held. */
static struct CUarray_st *record(struct CUctx_st *context, const CUDA_ARRAY3D_DESCRIPTOR *shape,
                                 struct sim_range *range)
{
	struct CUarray_st *a = calloc(1, sizeof(*a));

	if (!a)
		return NULL;
	*a = (struct CUarray_st){
		.tag = SIM_TAG_ARRAY, .context = context, .shape = *shape, .range = range, .next = arrays
	};
	arrays = a;
	return a;
}

static bool alive(const struct CUarray_st *array)
{
	const struct CUarray_st *a = arrays;

	while (a && a != array)
		a = a->next;
	return a != NULL;
}

static bool mipmap_alive(const struct CUmipmappedArray_st *mipmap)
{
	const struct CUmipmappedArray_st *m = mipmaps;

	while (m && m != mipmap)
		m = m->next;
	return m != NULL;
}

static void forget(struct CUarray_st *array)
{
	for (struct CUarray_st **at = &arrays; *at; at = &(*at)->next) {
		if (*at == array) {
			*at = array->next;
			break;
		}
	}
	array->tag = 0;
	free(array);
}

static void mipmap_forget(struct CUmipmappedArray_st *mipmap)
{
	for (struct CUmipmappedArray_st **at = &mipmaps; *at; at = &(*at)->next) {
		if (*at == mipmap) {
			*at = mipmap->next;
			break;
		}
	}
	for (unsigned i = 0; i < mipmap->levels; i++)
		if (mipmap->level[i])
			forget(mipmap->level[i]);
	mipmap->tag = 0;
	free(mipmap);
}

bool sim_array_view(CUarray array, struct sim_array_view *ret)
{
	if (!array || !alive(array) || !array->range)
		return false;
	const CUDA_ARRAY3D_DESCRIPTOR *s = &array->shape;

	*ret = (struct sim_array_view){ .range = array->range,
		                        .row_bytes = s->Width * element_bytes(s),
		                        .rows = rows_of(s),
		                        .slices = slices_of(s),
		                        .element_bytes = element_bytes(s) };
	ret->bytes = (uint8_t *)sim_host_address(array->range->base) + array->offset;
	return true;
}

/* Frees the records; the memory is charged to the context, and ends with it. */
void sim_arrays_context_gone(struct CUctx_st *context)
{
	for (struct CUmipmappedArray_st *m = mipmaps, *next; m; m = next) {
		next = m->next;
		if (m->context == context)
			mipmap_forget(m);
	}
	for (struct CUarray_st *a = arrays, *next; a; a = next) {
		next = a->next;
		if (a->context == context)
			forget(a);
	}
}

static CUresult create(struct CUctx_st *context, CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
	CUresult result = shape_check(shape);
	struct sim_range *range = NULL;

	if (result != CUDA_SUCCESS)
		return result;
	if (sim_capture_forbids())
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	sim_memory_lock();
	if (!(shape->Flags & DEFERRED)) {
		range = sim_range_packed(context, SIM_RANGE_ARRAY, packed_bytes(shape), padded_bytes(shape));
		if (!range)
			result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	struct CUarray_st *made = result == CUDA_SUCCESS ? record(context, shape, range) : NULL;

	if (!made && range)
		sim_range_drop(range);
	sim_memory_unlock();
	if (made)
		*array = made;
	return made ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

SIM_API CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *desc)
{
	SIM_CALL_CONTEXT(context);
	if (!array || !desc)
		return CUDA_ERROR_INVALID_VALUE;
	CUDA_ARRAY3D_DESCRIPTOR shape = {
		.Width = desc->Width, .Height = desc->Height, .Format = desc->Format, .NumChannels = desc->NumChannels
	};

	return create(context, array, &shape);
}

SIM_API CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *desc)
{
	SIM_CALL_CONTEXT(context);
	return array && desc ? create(context, array, desc) : CUDA_ERROR_INVALID_VALUE;
}

SIM_API CUresult cuArrayDestroy(CUarray array)
{
	SIM_CALL();
	CUresult result = CUDA_ERROR_INVALID_HANDLE;

	if (sim_capture_forbids())
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	sim_memory_lock();
	if (array && alive(array) && !array->level) {
		if (array->range)
			sim_range_drop(array->range);
		forget(array);
		result = CUDA_SUCCESS;
	}
	sim_memory_unlock();
	return result;
}

static CUresult describe(CUarray array, CUDA_ARRAY3D_DESCRIPTOR *ret)
{
	CUresult result = CUDA_ERROR_INVALID_HANDLE;

	sim_memory_lock();
	if (array && alive(array)) {
		*ret = array->shape;
		result = CUDA_SUCCESS;
	}
	sim_memory_unlock();
	return result;
}

SIM_API CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *desc, CUarray array)
{
	SIM_CALL();
	return desc ? describe(array, desc) : CUDA_ERROR_INVALID_VALUE;
}

SIM_API CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *desc, CUarray array)
{
	SIM_CALL();
	CUDA_ARRAY3D_DESCRIPTOR shape;

	if (!desc)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult r = describe(array, &shape);

	if (r == CUDA_SUCCESS)
		*desc = (CUDA_ARRAY_DESCRIPTOR){ .Width = shape.Width,
			                         .Height = shape.Height,
			                         .Format = shape.Format,
			                         .NumChannels = shape.NumChannels };
	return r;
}

/* As documented, the driver reports sizes only for arrays whose memory is still to be mapped. */
static CUresult requirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *ret, uint64_t bytes, unsigned flags)
{
	if (!(flags & DEFERRED))
		return CUDA_ERROR_INVALID_VALUE;
	*ret = (CUDA_ARRAY_MEMORY_REQUIREMENTS){ .size = (bytes + MAPPING_ALIGNMENT - 1) / MAPPING_ALIGNMENT *
		                                         MAPPING_ALIGNMENT,
		                                 .alignment = MAPPING_ALIGNMENT };
	return CUDA_SUCCESS;
}

SIM_API CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *need, CUarray array, CUdevice device)
{
	SIM_CALL();
	CUDA_ARRAY3D_DESCRIPTOR shape;

	if (!need)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_device_get(device))
		return CUDA_ERROR_INVALID_DEVICE;
	CUresult r = describe(array, &shape);

	return r == CUDA_SUCCESS ? requirements(need, padded_bytes(&shape), shape.Flags) : r;
}

/* --- mipmapped: all levels in one piece of memory ----------------------------------------------------------------- */

static CUDA_ARRAY3D_DESCRIPTOR half(CUDA_ARRAY3D_DESCRIPTOR s)
{
	s.Width = s.Width > 1 ? s.Width / 2 : 1;
	s.Height = s.Height > 1 ? s.Height / 2 : s.Height;
	if (!(s.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)))
		s.Depth = s.Depth > 1 ? s.Depth / 2 : s.Depth;
	return s;
}

static unsigned levels_of(const CUDA_ARRAY3D_DESCRIPTOR *s)
{
	uint64_t largest = s->Width > s->Height ? s->Width : s->Height;
	unsigned levels = 1;

	if (!(s->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) && s->Depth > largest)
		largest = s->Depth;
	for (; largest > 1; largest /= 2)
		levels++;
	return levels;
}

/* With the lock held; NULL = out of memory. */
static struct CUmipmappedArray_st *mipmap_make(struct CUctx_st *context, const CUDA_ARRAY3D_DESCRIPTOR *shape,
                                               unsigned levels)
{
	struct CUmipmappedArray_st *m = calloc(1, sizeof(*m));
	CUDA_ARRAY3D_DESCRIPTOR s = *shape;
	uint64_t offset = 0;
	bool whole = m != NULL;

	if (!m)
		return NULL;
	*m = (struct CUmipmappedArray_st){
		.tag = SIM_TAG_MIPMAP, .context = context, .levels = levels, .next = mipmaps
	};
	mipmaps = m;
	for (unsigned i = 0; whole && i < levels; i++, s = half(s)) {
		whole = (m->level[i] = record(context, &s, NULL)) != NULL;
		if (!whole)
			break;
		m->level[i]->level = true;
		m->level[i]->offset = offset;
		offset += packed_bytes(&s);
		m->padded_bytes += padded_bytes(&s);
	}
	if (whole && !(shape->Flags & DEFERRED)) {
		m->range = sim_range_packed(context, SIM_RANGE_ARRAY, offset, m->padded_bytes);
		whole = m->range != NULL;
	}
	if (!whole) {
		mipmap_forget(m);
		return NULL;
	}
	for (unsigned i = 0; i < levels; i++)
		m->level[i]->range = m->range;
	return m;
}

SIM_API CUresult cuMipmappedArrayCreate(CUmipmappedArray *mipmap, const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned levels)
{
	SIM_CALL_CONTEXT(context);
	if (!mipmap || !desc || levels == 0)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult r = shape_check(desc);

	if (r != CUDA_SUCCESS)
		return r;
	if (levels > levels_of(desc)) /* documented: the number is clamped */
		levels = levels_of(desc);
	if (sim_capture_forbids())
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	sim_memory_lock();
	struct CUmipmappedArray_st *made = mipmap_make(context, desc, levels);

	sim_memory_unlock();
	if (!made)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*mipmap = made;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuMipmappedArrayGetLevel(CUarray *array, CUmipmappedArray mipmap, unsigned level)
{
	SIM_CALL();
	CUresult result = CUDA_ERROR_INVALID_HANDLE;

	if (!array)
		return CUDA_ERROR_INVALID_VALUE;
	sim_memory_lock();
	if (mipmap && mipmap_alive(mipmap)) {
		result = level < mipmap->levels ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
		if (result == CUDA_SUCCESS)
			*array = mipmap->level[level];
	}
	sim_memory_unlock();
	return result;
}

SIM_API CUresult cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *need, CUmipmappedArray mipmap,
                                                       CUdevice device)
{
	SIM_CALL();
	CUresult result = CUDA_ERROR_INVALID_HANDLE;

	if (!need)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_device_get(device))
		return CUDA_ERROR_INVALID_DEVICE;
	sim_memory_lock();
	if (mipmap && mipmap_alive(mipmap))
		result = requirements(need, mipmap->padded_bytes, mipmap->level[0]->shape.Flags);
	sim_memory_unlock();
	return result;
}

SIM_API CUresult cuMipmappedArrayDestroy(CUmipmappedArray mipmap)
{
	SIM_CALL();
	CUresult result = CUDA_ERROR_INVALID_HANDLE;

	if (sim_capture_forbids())
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	sim_memory_lock();
	if (mipmap && mipmap_alive(mipmap)) {
		if (mipmap->range)
			sim_range_drop(mipmap->range);
		mipmap_forget(mipmap);
		result = CUDA_SUCCESS;
	}
	sim_memory_unlock();
	return result;
}

/* --- the first generation ----------------------------------------------------------------------------------------- */

SIM_API CUresult cuArrayCreate(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *desc)
{
	SIM_CALL_CONTEXT(context);
	if (!array || !desc)
		return CUDA_ERROR_INVALID_VALUE;
	CUDA_ARRAY3D_DESCRIPTOR shape = {
		.Width = desc->Width, .Height = desc->Height, .Format = desc->Format, .NumChannels = desc->NumChannels
	};

	return create(context, array, &shape);
}

SIM_API CUresult cuArray3DCreate(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *desc)
{
	SIM_CALL_CONTEXT(context);
	if (!array || !desc)
		return CUDA_ERROR_INVALID_VALUE;
	CUDA_ARRAY3D_DESCRIPTOR shape = { .Width = desc->Width,
		                          .Height = desc->Height,
		                          .Depth = desc->Depth,
		                          .Format = desc->Format,
		                          .NumChannels = desc->NumChannels,
		                          .Flags = desc->Flags };

	return create(context, array, &shape);
}

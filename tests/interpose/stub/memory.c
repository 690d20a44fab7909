/* SPDX-License-Identifier: Apache-2.0 */
/* Plain memory and arrays, physical memory and its mappings, and a system whose GPUs access the host's own memory. */
#include "tests/interpose/stub/stub.h"

/* Rounds as drivers do: whole granules above 1 MiB, powers of two below. */
static uint64_t taken(uint64_t bytes)
{
	uint64_t size = 512, granule = 2u << 20;

	if (bytes > granule / 2)
		return bytes > UINT64_MAX - granule ? UINT64_MAX : (bytes + granule - 1) / granule * granule;
	while (size < bytes)
		size *= 2;
	return size;
}

static void stall(void)
{
	__atomic_fetch_add(&stalled, 1, __ATOMIC_SEQ_CST);
	while (__atomic_load_n(&stalling, __ATOMIC_SEQ_CST))
		nanosleep(&(struct timespec){ .tv_nsec = 100000 }, NULL);
	__atomic_fetch_sub(&stalled, 1, __ATOMIC_SEQ_CST);
}

static CUresult plain(enum kind kind, uint64_t bytes, uint64_t *ret)
{
	struct object *o;
	CUresult r = begin();

	if (r == CUDA_SUCCESS && bytes == 0)
		r = CUDA_ERROR_INVALID_VALUE;
	if (r == CUDA_SUCCESS)
		r = allocate(kind, current()->dev, taken(bytes), (uint64_t)current(), &o);
	if (r == CUDA_SUCCESS)
		*ret = address_of(o);
	if (r == CUDA_SUCCESS)
		stall();
	return r;
}
API CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytes)
{
	return dptr ? plain(MEMORY, bytes, (uint64_t *)dptr) : CUDA_ERROR_INVALID_VALUE;
}
API CUresult cuMemAllocManaged(CUdeviceptr *dptr, size_t bytes, unsigned int flags)
{
	return flags == 1 || flags == 2 ? plain(MEMORY, bytes, (uint64_t *)dptr) : CUDA_ERROR_INVALID_VALUE;
}
API CUresult cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pitch, size_t width, size_t height, unsigned int element)
{
	if (element != 4 && element != 8 && element != 16)
		return CUDA_ERROR_INVALID_VALUE;
	*pitch = (width + 1023) / 1024 * 1024; /* differs from the interposer's estimate */
	return plain(MEMORY, *pitch * height, (uint64_t *)dptr);
}
API CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *desc)
{
	return plain(ARRAY, desc->Width * (desc->Height ? desc->Height : 1) * 4 * desc->NumChannels, (uint64_t *)array);
}
API CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *desc)
{
	return plain(ARRAY,
	             desc->Width * (desc->Height ? desc->Height : 1) * (desc->Depth ? desc->Depth : 1) * 4 *
	                     desc->NumChannels,
	             (uint64_t *)array);
}
API CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned int levels)
{
	(void)levels;
	return plain(MIPMAP, desc->Width * (desc->Height ? desc->Height : 1) * 6 * desc->NumChannels,
	             (uint64_t *)array);
}
API CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *need, CUarray array, CUdevice dev)
{
	struct object *o = object_at((uint64_t)array, ARRAY);

	(void)dev;
	if (!o)
		return CUDA_ERROR_INVALID_VALUE;
	*need = (CUDA_ARRAY_MEMORY_REQUIREMENTS){ .size = o->bytes, .alignment = 512 };
	return CUDA_SUCCESS;
}
API CUresult cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *need, CUmipmappedArray array,
                                                   CUdevice dev)
{
	struct object *o = object_at((uint64_t)array, MIPMAP);

	(void)dev;
	if (!o)
		return CUDA_ERROR_INVALID_VALUE;
	*need = (CUDA_ARRAY_MEMORY_REQUIREMENTS){ .size = o->bytes, .alignment = 512 };
	return CUDA_SUCCESS;
}
CUresult give_back(uint64_t address, enum kind kind, CUresult wrong)
{
	struct object *o;

	pthread_mutex_lock(&lock);
	o = object_at(address, kind);
	if (o)
		discard(o);
	pthread_mutex_unlock(&lock);
	return o ? CUDA_SUCCESS : wrong;
}
API CUresult cuArrayDestroy(CUarray array)
{
	return give_back((uint64_t)array, ARRAY, CUDA_ERROR_INVALID_HANDLE);
}
API CUresult cuMipmappedArrayDestroy(CUmipmappedArray array)
{
	return give_back((uint64_t)array, MIPMAP, CUDA_ERROR_INVALID_HANDLE);
}
API CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
	CUresult r = begin();

	if (r == CUDA_SUCCESS) {
		*total_bytes = gpu[current()->dev].total;
		*free_bytes = *total_bytes - stub_used(current()->dev);
	}
	return r;
}

/* --- physical memory: handles are reused at once, as real drivers may -------------------------------------------- */

struct mapping {
	uint64_t address, bytes;
	struct object *physical;
};

static struct mapping mappings[4096];

API CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *prop,
                         unsigned long long flags)
{
	struct object *o;
	CUresult r;

	(void)flags;
	if (bytes % GRANULE)
		return CUDA_ERROR_INVALID_VALUE;
	if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		bytes = 0;
	else if (prop->location.id < 0 || prop->location.id >= devices())
		return CUDA_ERROR_INVALID_DEVICE;
	r = allocate(PHYSICAL, bytes ? prop->location.id : 0, bytes, 0, &o);
	if (r == CUDA_SUCCESS)
		*handle = (uint64_t)o;
	return r;
}
static void unreference(struct object *o)
{
	if (--o->references == 0)
		discard(o);
}
API CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	struct object *o = (struct object *)handle;

	pthread_mutex_lock(&lock);
	unreference(o);
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}
API CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                      unsigned long long flags)
{
	(void)flags;
	(void)offset;
	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < sizeof(mappings) / sizeof(mappings[0]); i++)
		if (!mappings[i].bytes) {
			mappings[i] = (struct mapping){ address, bytes, (struct object *)handle };
			mappings[i].physical->references++;
			break;
		}
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}
API CUresult cuMemUnmap(CUdeviceptr address, size_t bytes)
{
	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < sizeof(mappings) / sizeof(mappings[0]); i++)
		if (mappings[i].bytes && mappings[i].address >= address && mappings[i].address < address + bytes) {
			unreference(mappings[i].physical);
			mappings[i].bytes = 0;
		}
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}
API CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
	CUresult r = CUDA_ERROR_INVALID_VALUE;

	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < sizeof(mappings) / sizeof(mappings[0]); i++)
		if (mappings[i].bytes && (uint64_t)address - mappings[i].address < mappings[i].bytes) {
			mappings[i].physical->references++;
			*handle = (uint64_t)mappings[i].physical;
			r = CUDA_SUCCESS;
		}
	pthread_mutex_unlock(&lock);
	return r;
}
API CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr address)
{
	CUresult r = CUDA_ERROR_NOT_FOUND;

	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < sizeof(mappings) / sizeof(mappings[0]); i++)
		if (mappings[i].bytes && address - mappings[i].address < mappings[i].bytes) {
			*base = mappings[i].address;
			*bytes = mappings[i].bytes;
			r = CUDA_SUCCESS;
		}
	pthread_mutex_unlock(&lock);
	return r;
}

/* --- GPUs with access to the host's own memory (HMM, ATS): every address may be prefetched ------------------------ */

static uint64_t moved;

API uint64_t stub_moved(void)
{
	return moved;
}

API CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr address)
{
	/* all addresses of this driver are in its table */
	if (attribute != CU_POINTER_ATTRIBUTE_MEMORY_TYPE || !object_at(address, MEMORY))
		return CUDA_ERROR_INVALID_VALUE;
	*(unsigned int *)data = CU_MEMORYTYPE_DEVICE;
	return CUDA_SUCCESS;
}

API CUresult cuMemPrefetchAsync(CUdeviceptr address, size_t bytes, CUdevice to, CUstream stream)
{
	(void)address, (void)bytes, (void)to, (void)stream;
	moved++;
	return CUDA_SUCCESS;
}

API CUresult cuMemPrefetchAsync_v2(CUdeviceptr address, size_t bytes, CUmemLocation to, unsigned flags, CUstream stream)
{
	(void)address, (void)bytes, (void)to, (void)flags, (void)stream;
	moved++;
	return CUDA_SUCCESS;
}

API CUresult cuMemPrefetchBatchAsync(CUdeviceptr *address, size_t *bytes, size_t count, CUmemLocation *to,
                                     size_t *first, size_t locations, unsigned long long flags, CUstream stream)
{
	(void)address, (void)bytes, (void)to, (void)first, (void)locations, (void)flags, (void)stream;
	moved += count;
	return CUDA_SUCCESS;
}

API CUresult cuMemAdvise_v2(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUmemLocation location)
{
	(void)address, (void)bytes, (void)advice, (void)location;
	moved++;
	return CUDA_SUCCESS;
}

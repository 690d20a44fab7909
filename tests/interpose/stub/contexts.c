/* SPDX-License-Identifier: Apache-2.0 */
/* Devices and contexts. */
#include "tests/interpose/stub/stub.h"

API CUresult cuInit(unsigned int flags)
{
	(void)flags;
	for (int i = 0; i < DEVICES; i++)
		if (!gpu[i].total)
			gpu[i].total = UINT64_C(16) << 30;
	initialised = true;
	return CUDA_SUCCESS;
}
API CUresult cuDriverGetVersion(int *version)
{
	const char *said = getenv("STUB_VERSION");

	*version = said ? atoi(said) : 13000;
	return CUDA_SUCCESS;
}
API CUresult cuDeviceGetCount(int *count)
{
	*count = devices();
	return initialised ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}
API CUresult cuDeviceGet(CUdevice *dev, int ordinal)
{
	*dev = ordinal;
	return ordinal >= 0 && ordinal < devices() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
/* STUB_ORDER: the device numbers in CUDA order, as CUDA_VISIBLE_DEVICES would make them. */
API CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev)
{
	const char *order = getenv("STUB_ORDER");
	int physical = order && dev >= 0 && (size_t)dev < strlen(order) ? order[dev] - '0' : dev;

	if (dev < 0 || dev >= devices())
		return CUDA_ERROR_INVALID_DEVICE;
	memset(uuid, 0xd0 + physical, sizeof(*uuid));
	return CUDA_SUCCESS;
}
API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
	*bytes = gpu[dev].total;
	return CUDA_SUCCESS;
}
API CUresult cuDeviceGetName(char *name, int len, CUdevice dev)
{
	snprintf(name, (size_t)len, "stub %d", dev);
	return CUDA_SUCCESS;
}

static CUresult create(CUcontext *context, CUdevice dev)
{
	struct object *o;
	CUresult r;

	if (!initialised)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (dev < 0 || dev >= devices())
		return CUDA_ERROR_INVALID_DEVICE;
	r = allocate(CONTEXT, dev, CONTEXT_BYTES, 0, &o);
	if (r == CUDA_SUCCESS)
		*context = (CUcontext)o;
	return r;
}
static void clear_context(struct object *context)
{
	for (int i = 0; i < OBJECTS; i++)
		if ((objects[i].kind == MEMORY || objects[i].kind == ARRAY || objects[i].kind == MIPMAP) &&
		    objects[i].owner == (uint64_t)context)
			discard(&objects[i]);
	discard(context);
}
API CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice dev)
{
	CUresult r = create(context, dev);

	(void)flags;
	if (r == CUDA_SUCCESS)
		stack[depth++] = (struct object *)*context;
	return r;
}
API CUresult cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *params, unsigned int flags, CUdevice dev)
{
	(void)params;
	return cuCtxCreate_v2(context, flags, dev);
}
API CUresult cuCtxDestroy_v2(CUcontext context)
{
	if (!context)
		return CUDA_ERROR_INVALID_CONTEXT;
	pthread_mutex_lock(&lock);
	if (current() == (struct object *)context)
		depth--;
	clear_context((struct object *)context);
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}
API CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice dev)
{
	static pthread_mutex_t retaining = PTHREAD_MUTEX_INITIALIZER;
	CUresult r = CUDA_SUCCESS;

	if (dev < 0 || dev >= devices())
		return CUDA_ERROR_INVALID_DEVICE;
	pthread_mutex_lock(&retaining);
	if (!gpu[dev].primary) {
		/* creating a context takes long enough for another thread to arrive and wait for it */
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
		r = create(context, dev);
		if (r == CUDA_SUCCESS)
			gpu[dev].primary = (struct object *)*context;
	}
	*context = (CUcontext)gpu[dev].primary;
	gpu[dev].primary_count += r == CUDA_SUCCESS;
	pthread_mutex_unlock(&retaining);
	return r;
}
API CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev)
{
	pthread_mutex_lock(&lock);
	if (gpu[dev].primary)
		clear_context(gpu[dev].primary);
	gpu[dev].primary = NULL;
	gpu[dev].primary_count = 0;
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}
API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
	if (gpu[dev].primary_count == 0)
		return CUDA_ERROR_INVALID_CONTEXT;
	return --gpu[dev].primary_count ? CUDA_SUCCESS : cuDevicePrimaryCtxReset_v2(dev);
}
API CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active)
{
	*flags = 0;
	*active = gpu[dev].primary != NULL;
	return CUDA_SUCCESS;
}
API CUresult cuCtxSetCurrent(CUcontext context)
{
	depth = context ? 1 : 0;
	stack[0] = (struct object *)context;
	return CUDA_SUCCESS;
}
API CUresult cuCtxPushCurrent_v2(CUcontext context)
{
	stack[depth++] = (struct object *)context;
	return CUDA_SUCCESS;
}
API CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
	if (!depth)
		return CUDA_ERROR_INVALID_CONTEXT;
	*context = (CUcontext)stack[--depth];
	return CUDA_SUCCESS;
}
API CUresult cuCtxGetCurrent(CUcontext *context)
{
	*context = (CUcontext)current();
	return CUDA_SUCCESS;
}
API CUresult cuCtxGetDevice(CUdevice *dev)
{
	CUresult r = begin();

	if (r == CUDA_SUCCESS)
		*dev = current()->dev;
	return r;
}

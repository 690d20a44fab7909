/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contexts: the GPU that a thread's calls go to, the memory that a context takes by itself, and what is freed with it.
 *
 * The overhead is only known once the context exists, so it is charged then; when the grant has no room for it the
 * context is destroyed again and the caller gets out-of-memory. On a GPU outside of the grant no context is made.
 */
#include "interpose/context.h"

#include "interpose/compute/throttle.h"
#include "interpose/driver/driver.h"
#include "interpose/memory/charge.h"
#include "interpose/memory/pool.h"
#include "interpose/memory/ptrmap.h"
#include "interpose/tenant/guest.h"

/* No context takes so much; a larger difference is another allocation made in between. */
#define OVERHEAD_MAX (UINT64_C(4) << 30)

struct creation {
	int device;
	bool measured;
	uint64_t used_before;
};

/* CUDA_SUCCESS: go on; CUDA_ERROR_DEVICE_UNAVAILABLE: the GPU is not in the grant. */
static CUresult creation_begin(struct creation *c, CUdevice dev)
{
	*c = (struct creation){ .device = guest_device_of_ordinal(dev) };
	if (c->device < 0)
		/* the driver reports an ordinal that does not exist */
		return dev >= 0 && (uint32_t)dev < guest_self()->device_count ? CUDA_ERROR_DEVICE_UNAVAILABLE
		                                                              : CUDA_SUCCESS;
	if (guest_memory_limit(c->device) == 0)
		return CUDA_ERROR_OUT_OF_MEMORY;
	c->measured = overhead_used(c->device, &c->used_before);
	return CUDA_SUCCESS;
}

/* Charge the overhead and note it under (kind, key). CUDA_ERROR_OUT_OF_MEMORY: the caller undoes the context. */
static CUresult creation_end(const struct creation *c, enum ptrmap_kind kind, uint64_t key, CUcontext context)
{
	struct ptrmap_entry entry = { .key = key, .owner = guest_context_tag(context), .kind = kind };
	struct ptrmap_entry other;
	uint64_t used = 0;
	bool is_new;

	if (c->device < 0 || (kind == PTRMAP_PRIMARY && ptrmap_get(kind, key, &other)))
		return CUDA_SUCCESS;
	if (c->measured && overhead_used(c->device, &used) && used > c->used_before &&
	    used - c->used_before < OVERHEAD_MAX)
		entry.bytes = used - c->used_before;
	if (charge_take(c->device, entry.bytes) != CUDA_SUCCESS) {
		guest_note_no_room(entry.bytes, charge_room(c->device, 0));
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	entry.device = (int8_t)c->device;
	if (!ptrmap_add(&entry, &is_new)) {
		charge_return(c->device, entry.bytes);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (is_new)
		overhead_contexts(c->device, 1);
	else /* two threads retained a primary context at once and both saw it appear: one charges it */
		charge_return(c->device, entry.bytes);
	return CUDA_SUCCESS;
}

/* The context was destroyed, and everything allocated in it. */
static void context_gone(const struct ptrmap_entry *entry)
{
	uint64_t freed[SLUICE_MAX_DEVICES] = { 0 };

	ptrmap_drop_owner(entry->owner, freed);
	freed[entry->device] += entry->bytes;
	for (int i = 0; i < SLUICE_MAX_DEVICES; i++)
		if (freed[i])
			charge_return(i, freed[i]);
	pool_refresh(entry->device);
	overhead_contexts(entry->device, -1);
	overhead_follow(entry->device, 0);
}

static void current_changed(void)
{
	guest_forget_current_device();
	throttle_forget_local();
}

/* --- primary contexts -------------------------------------------------------------------------------------------- */

static bool primary_active(CUdevice dev)
{
	unsigned int flags;
	int active = 0;

	if (!driver.cuDevicePrimaryCtxGetState || driver.cuDevicePrimaryCtxGetState(dev, &flags, &active))
		return false;
	return active;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice dev)
{
	struct ptrmap_entry entry;
	struct creation c;
	CUresult r;

	if (!driver.cuDevicePrimaryCtxRetain)
		return CUDA_ERROR_NOT_FOUND;
	if (!guest_enter())
		return driver.cuDevicePrimaryCtxRetain(context, dev);
	if (ptrmap_get(PTRMAP_PRIMARY, (uint64_t)dev + 1, &entry)) {
		r = driver.cuDevicePrimaryCtxRetain(context, dev);
	} else if ((r = creation_begin(&c, dev)) == CUDA_SUCCESS) {
		r = driver.cuDevicePrimaryCtxRetain(context, dev);
		if (r == CUDA_SUCCESS) {
			r = creation_end(&c, PTRMAP_PRIMARY, (uint64_t)dev + 1, *context);
			if (r != CUDA_SUCCESS) {
				*context = NULL; /* a handle that works for no call must not be made current */
				if (driver.cuDevicePrimaryCtxRelease_v2)
					driver.cuDevicePrimaryCtxRelease_v2(dev);
			}
		}
	}
	guest_leave();
	return r;
}

static CUresult primary_leave(CUdevice dev, CUresult (*real)(CUdevice))
{
	struct ptrmap_entry entry;
	CUresult r;

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	throttle_forget_all();
	guest_forget_current_device();
	if (!guest_enter())
		return real(dev);
	r = real(dev);
	/* released by the last holder, or reset; a context that stays current to a thread remains charged with it */
	if (r == CUDA_SUCCESS && !primary_active(dev) && ptrmap_take(PTRMAP_PRIMARY, (uint64_t)dev + 1, &entry)) {
		throttle_context_gone(entry.owner);
		context_gone(&entry);
	}
	guest_leave();
	return r;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice dev)
{
	return primary_leave(dev, driver.cuDevicePrimaryCtxRelease);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
	return primary_leave(dev, driver.cuDevicePrimaryCtxRelease_v2);
}

CUresult cuDevicePrimaryCtxReset(CUdevice dev)
{
	return primary_leave(dev, driver.cuDevicePrimaryCtxReset);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev)
{
	return primary_leave(dev, driver.cuDevicePrimaryCtxReset_v2);
}

/* --- limits that take device memory ---------------------------------------------------------------------------- */

/* Stacks, heaps and printf buffers of kernels: a driver allocates the limit for all threads that the GPU can run, which
 * is gigabytes for a few kilobytes of stack each. */
CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
	int device = guest_current_device();
	size_t was = 0;

	if (!driver.cuCtxSetLimit)
		return CUDA_ERROR_NOT_FOUND;
	bool known = driver.cuCtxGetLimit && driver.cuCtxGetLimit(&was, limit) == CUDA_SUCCESS;
	CUresult r = driver.cuCtxSetLimit(limit, value);

	if (r != CUDA_SUCCESS || device < 0 || value <= was || !guest_enter())
		return r;
	overhead_follow(device, 0);
	if (known && charge_is_beyond(device)) {
		driver.cuCtxSetLimit(limit, was);
		overhead_follow(device, 0);
		r = CUDA_ERROR_OUT_OF_MEMORY;
	}
	guest_leave();
	return r;
}

/* --- created contexts -------------------------------------------------------------------------------------------- */

/* The four versions differ only in their parameters. `CALL` is the driver's call, an expression. */
#define CREATE(NAME, CONTEXT, DEV, CALL)                                                                               \
	({                                                                                                             \
		struct creation c_;                                                                                    \
		CUresult r_ = CUDA_ERROR_NOT_FOUND;                                                                    \
		if (driver.NAME && !guest_enter()) {                                                                   \
			r_ = CALL;                                                                                     \
		} else if (driver.NAME) {                                                                              \
			r_ = creation_begin(&c_, DEV);                                                                 \
			if (r_ == CUDA_SUCCESS)                                                                        \
				r_ = CALL;                                                                             \
			if (r_ == CUDA_SUCCESS && (CONTEXT)) {                                                         \
				r_ = creation_end(&c_, PTRMAP_CONTEXT, (uintptr_t) * (CONTEXT), *(CONTEXT));           \
				if (r_ != CUDA_SUCCESS) {                                                              \
					if (driver.cuCtxDestroy_v2)                                                    \
						driver.cuCtxDestroy_v2(*(CONTEXT));                                    \
					*(CONTEXT) = NULL;                                                             \
				}                                                                                      \
			}                                                                                              \
			current_changed();                                                                             \
			guest_leave();                                                                                 \
		}                                                                                                      \
		r_;                                                                                                    \
	})

CUresult cuCtxCreate(CUcontext *context, unsigned int flags, CUdevice dev)
{
	return CREATE(cuCtxCreate, context, dev, driver.cuCtxCreate(context, flags, dev));
}

CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice dev)
{
	return CREATE(cuCtxCreate_v2, context, dev, driver.cuCtxCreate_v2(context, flags, dev));
}

CUresult cuCtxCreate_v3(CUcontext *context, CUexecAffinityParam *affinity, int count, unsigned int flags, CUdevice dev)
{
	return CREATE(cuCtxCreate_v3, context, dev, driver.cuCtxCreate_v3(context, affinity, count, flags, dev));
}

CUresult cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *params, unsigned int flags, CUdevice dev)
{
	return CREATE(cuCtxCreate_v4, context, dev, driver.cuCtxCreate_v4(context, params, flags, dev));
}

/* The same function in a private table of the driver. */
static CUresult (*bypass)(CUcontext *, unsigned int, CUdevice);

static CUresult create_by_table(CUcontext *context, unsigned int flags, CUdevice dev)
{
	return CREATE(cuCtxCreate_v2, context, dev, bypass(context, flags, dev));
}

void context_set_bypass(void *real)
{
	__atomic_store_n(&bypass, (CUresult(*)(CUcontext *, unsigned int, CUdevice))real, __ATOMIC_RELEASE);
}

void *context_bypass(void)
{
	return (void *)create_by_table;
}

/* The handle of an existing primary context: retaining it changes only a count. */
static CUcontext primary_handle(CUdevice dev)
{
	CUcontext context = NULL;

	if (!driver.cuDevicePrimaryCtxRetain || !driver.cuDevicePrimaryCtxRelease_v2 ||
	    driver.cuDevicePrimaryCtxRetain(&context, dev) != CUDA_SUCCESS)
		return NULL;
	driver.cuDevicePrimaryCtxRelease_v2(dev);
	return context;
}

/* A green context is a part of the primary one and retains it; the cap does not depend on the SMs it is limited to. */
CUresult cuGreenCtxCreate(CUgreenCtx *context, CUdevResourceDesc desc, CUdevice dev, unsigned int flags)
{
	struct ptrmap_entry entry;
	struct creation c;
	CUresult r;

	if (!driver.cuGreenCtxCreate)
		return CUDA_ERROR_NOT_FOUND;
	if (!guest_enter())
		return driver.cuGreenCtxCreate(context, desc, dev, flags);
	r = creation_begin(&c, dev);
	if (r == CUDA_SUCCESS)
		r = driver.cuGreenCtxCreate(context, desc, dev, flags);
	if (r == CUDA_SUCCESS && !ptrmap_get(PTRMAP_PRIMARY, (uint64_t)dev + 1, &entry) &&
	    creation_end(&c, PTRMAP_PRIMARY, (uint64_t)dev + 1, primary_handle(dev)) != CUDA_SUCCESS)
		r = CUDA_SUCCESS; /* the caller's other handles prevent an undo: the next allocation is refused */
	guest_leave();
	return r;
}

/* Its memory is the primary context's, but the events that its streams were timed by end with it. */
CUresult cuGreenCtxDestroy(CUgreenCtx green)
{
	CUcontext context = NULL;

	if (!driver.cuGreenCtxDestroy)
		return CUDA_ERROR_NOT_FOUND;
	if (driver.cuCtxFromGreenCtx && guest_enter()) {
		if (driver.cuCtxFromGreenCtx(&context, green) == CUDA_SUCCESS)
			throttle_green_gone(guest_context_tag(context));
		guest_leave();
	}
	return driver.cuGreenCtxDestroy(green);
}

static CUresult destroy(CUcontext context, CUresult (*real)(CUcontext))
{
	struct ptrmap_entry entry;
	bool ours;
	CUresult r;

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	current_changed();
	if (!guest_enter())
		return real(context);
	throttle_context_gone(guest_context_tag(context));
	ours = ptrmap_take(PTRMAP_CONTEXT, (uintptr_t)context, &entry);
	r = real(context);
	if (ours && r != CUDA_SUCCESS)
		ptrmap_put(&entry);
	else if (ours)
		context_gone(&entry);
	guest_leave();
	return r;
}

CUresult cuCtxDestroy(CUcontext context)
{
	return destroy(context, driver.cuCtxDestroy);
}

CUresult cuCtxDestroy_v2(CUcontext context)
{
	return destroy(context, driver.cuCtxDestroy_v2);
}

/* Destroys the context only with the last attachment, so its memory stays charged until the process ends. */
CUresult cuCtxDetach(CUcontext context)
{
	if (!driver.cuCtxDetach)
		return CUDA_ERROR_NOT_FOUND;
	current_changed();
	throttle_context_gone(guest_context_tag(context));
	return driver.cuCtxDetach(context);
}

/* --- the current context --------------------------------------------------------------------------------------- */

CUresult cuCtxSetCurrent(CUcontext context)
{
	if (!driver.cuCtxSetCurrent)
		return CUDA_ERROR_NOT_FOUND;
	current_changed();
	return driver.cuCtxSetCurrent(context);
}

CUresult cuCtxPushCurrent(CUcontext context)
{
	if (!driver.cuCtxPushCurrent)
		return CUDA_ERROR_NOT_FOUND;
	current_changed();
	return driver.cuCtxPushCurrent(context);
}

CUresult cuCtxPushCurrent_v2(CUcontext context)
{
	if (!driver.cuCtxPushCurrent_v2)
		return CUDA_ERROR_NOT_FOUND;
	current_changed();
	return driver.cuCtxPushCurrent_v2(context);
}

CUresult cuCtxPopCurrent(CUcontext *context)
{
	if (!driver.cuCtxPopCurrent)
		return CUDA_ERROR_NOT_FOUND;
	current_changed();
	return driver.cuCtxPopCurrent(context);
}

CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
	if (!driver.cuCtxPopCurrent_v2)
		return CUDA_ERROR_NOT_FOUND;
	current_changed();
	return driver.cuCtxPopCurrent_v2(context);
}

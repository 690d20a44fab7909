/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads the real driver, once, on the first call that needs it: from the path in the region if it has one (bind mounts
 * hide the real file from any search), else from the place where the loader would find it.
 *
 * Loading takes no lock: racing threads do the same idempotent work and the first one publishes it, so a fork in the
 * middle leaves no lock held.
 */
#include "interpose/driver/driver.h"

#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <string.h>

#include "interpose/attach/attach.h"
#include "interpose/attach/places.h"

#define HOOK(group, ret, name, params, since) __attribute__((visibility("hidden"))) ret lazy_##name params;
#define DRIVER_ONLY(ret, name, params) __attribute__((visibility("hidden"))) ret lazy_##name params;
#include "interpose/driver/hooks.def"
#undef HOOK
#undef DRIVER_ONLY

struct driver_table driver = {
#define HOOK(group, ret, name, params, since) .name = lazy_##name,
#define DRIVER_ONLY(ret, name, params) .name = lazy_##name,
#include "interpose/driver/hooks.def"
#undef HOOK
#undef DRIVER_ONLY
};

#define DRIVER_ENTRIES (sizeof(struct driver_table) / sizeof(void *))

const uint64_t driver_hook_mask = 0
#define HOOK(group, ret, name, params, since) | UINT64_C(1) << HOOK_GROUP_##group
#define DRIVER_ONLY(ret, name, params)
#include "interpose/driver/hooks.def"
#undef HOOK
#undef DRIVER_ONLY
	;

/* Same order as forward.S: the table, then the exported trampolines. */
static const char *const names[] = {
#define HOOK(group, ret, name, params, since) #name,
#define DRIVER_ONLY(ret, name, params) #name,
#include "interpose/driver/hooks.def"
#undef HOOK
#undef DRIVER_ONLY
#define FIRST_FORWARD DRIVER_ENTRIES
#define HOOK(group, ret, name, params, since)
#define DRIVER_ONLY(ret, name, params) #name,
#define FORWARD(name) #name,
#include "interpose/driver/hooks.def"
#include "interpose/driver/forward.def"
#undef HOOK
#undef DRIVER_ONLY
#undef FORWARD
};

#define NAMES (sizeof(names) / sizeof(names[0]))

enum { NOT_LOADED, PUBLISHING, LOADED, ABSENT };

static int state;
static void *driver_handle;

static void publish(void *handle)
{
	void *table[DRIVER_ENTRIES];
	void **to = (void **)&driver;
	int expected = NOT_LOADED;

	for (size_t i = 0; i < DRIVER_ENTRIES; i++)
		table[i] = handle ? dlsym(handle, names[i]) : NULL;
	if (__atomic_compare_exchange_n(&state, &expected, PUBLISHING, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
		driver_handle = handle;
		for (size_t i = 0; i < DRIVER_ENTRIES; i++)
			__atomic_store_n(&to[i], table[i], __ATOMIC_RELAXED);
		__atomic_store_n(&state, handle ? LOADED : ABSENT, __ATOMIC_RELEASE);
		return;
	}
	/* The winner has a hundred stores left. The wait is bounded, because a fork may have left the winner behind in
	 * the parent. */
	for (int i = 0; i < 1000 && __atomic_load_n(&state, __ATOMIC_ACQUIRE) == PUBLISHING; i++)
		sched_yield();
	if (__atomic_load_n(&state, __ATOMIC_ACQUIRE) == PUBLISHING) {
		driver_handle = handle;
		for (size_t i = 0; i < DRIVER_ENTRIES; i++)
			__atomic_store_n(&to[i], table[i], __ATOMIC_RELAXED);
		__atomic_store_n(&state, handle ? LOADED : ABSENT, __ATOMIC_RELEASE);
	}
}

int driver_load(void)
{
	void *handle;
	int now = __atomic_load_n(&state, __ATOMIC_ACQUIRE);

	if (now == NOT_LOADED || now == PUBLISHING) {
		handle = reallib_open(attach_driver_path(), "libcuda.so.1");
		publish(handle);
		now = __atomic_load_n(&state, __ATOMIC_ACQUIRE);
	}
	return now == LOADED ? 0 : -ENOENT;
}

void *driver_symbol(const char *name)
{
	return driver_load() == 0 ? dlsym(driver_handle, name) : NULL;
}

bool driver_forwards(const char *name)
{
	for (size_t i = FIRST_FORWARD; i < NAMES; i++)
		if (strcmp(names[i], name) == 0)
			return true;
	return false;
}

static CUresult missing(void)
{
	return CUDA_ERROR_NOT_FOUND;
}

/* Called by the slow path of the trampolines: entry `index` of the list, whose table slot is `slot`. */
__attribute__((visibility("hidden"))) void *trampoline_resolve(size_t index, void **slot);
void *trampoline_resolve(size_t index, void **slot)
{
	void *target = index < NAMES ? driver_symbol(names[index]) : NULL;

	if (!target)
		target = (void *)missing;
	__atomic_store_n(slot, target, __ATOMIC_RELAXED);
	return target;
}

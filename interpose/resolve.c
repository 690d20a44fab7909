/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ways to a driver function other than linking: cuInit, cuGetProcAddress, cuGetExportTable.
 *
 * cuGetProcAddress calls the driver first. Only the driver knows which function a (name, version, flags) means; the
 * interposer knows which functions it wraps. So the driver's result is looked up among the real entry points and
 * replaced by the wrapper of the same one: correct for every version and stream flavour, and absent where the driver
 * has no such function. dlsym is not hooked: in the place of libcuda.so.1 it finds the interposer anyway.
 */
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "interpose/compute/throttle.h"
#include "interpose/context.h"
#include "interpose/driver/driver.h"
#include "interpose/memory/charge.h"
#include "interpose/memory/pool.h"
#include "interpose/memory/ptrmap.h"
#include "interpose/tenant/guest.h"
#include "interpose/tenant/visible.h"

/* Every interposed symbol with its wrapper. */
static const struct wrapper {
	const char *name;
	uint32_t since; /* first CUDA version, as in hooks.def */
	uint32_t group; /* enum driver_hook_group */
	void *wrapper;
	size_t slot; /* offset of the driver's function in struct driver_table */
} wrappers[] = {
#define HOOK(group, ret, name, params, since)                                                                          \
	{ #name, since, HOOK_GROUP_##group, (void *)name, offsetof(struct driver_table, name) },
#define DRIVER_ONLY(ret, name, params)
#include "interpose/driver/hooks.def"
#undef HOOK
#undef DRIVER_ONLY
};

#define WRAPPERS (sizeof(wrappers) / sizeof(wrappers[0]))

static void launched(int device, bool loaded)
{
	overhead_follow(device, loaded ? 0 : OVERHEAD_EVERY_NS);
}

/* Called before any other thread is in: the state that memory.h and throttle.h keep belongs to the parent process. */
static bool prepare(void)
{
	throttle_forget_parent();
	throttle_on_launch(launched);
	overhead_prepare();
	visible_prepare();
	return ptrmap_prepare() && pool_prepare();
}

CUresult cuInit(unsigned int flags)
{
	CUresult r;

	if (guest_self())
		return driver.cuInit(flags);
	if (guest_attach(prepare) != 0)
		return CUDA_ERROR_SYSTEM_NOT_READY;
	if (driver_load() != 0 || !driver.cuInit) {
		guest_refuse("no real libcuda.so.1 found beside the interposer");
		return CUDA_ERROR_SYSTEM_NOT_READY;
	}
	r = driver.cuInit(flags);
	if (r == CUDA_SUCCESS)
		guest_find_devices();
	return r;
}

/* --- cuGetProcAddress -------------------------------------------------------------------------------------------- */

#define NAME_MAX_BYTES 128 /* the longest driver symbol has 62 characters */

static bool ends_with(const char *name, size_t length, const char *suffix)
{
	size_t n = strlen(suffix);

	return length > n && memcmp(name + length - n, suffix, n) == 0;
}

/* A symbol in parts: cuMemcpyHtoD_v2_ptds is version 2 of cuMemcpyHtoD, per thread. */
struct symbol_parts {
	size_t base; /* length of its name for cuGetProcAddress */
	int version; /* 1 when the name has none */
	bool per_thread;
};

static struct symbol_parts parts_of(const char *name)
{
	struct symbol_parts parts = { strlen(name), 1, false };
	size_t n = parts.base;

	parts.per_thread = ends_with(name, n, "_ptsz") || ends_with(name, n, "_ptds");
	if (parts.per_thread)
		n -= 5;
	if (n > 3 && name[n - 3] == '_' && name[n - 2] == 'v' && name[n - 1] >= '1' && name[n - 1] <= '9') {
		parts.version = name[n - 1] - '0';
		n -= 3;
	}
	parts.base = n;
	return parts;
}

static void *real_of(const struct wrapper *hook)
{
	return *(void **)((char *)&driver + hook->slot);
}

static bool same_base(const char *a, const char *b)
{
	size_t n = parts_of(a).base;

	return n == parts_of(b).base && memcmp(a, b, n) == 0;
}

/*
 * How well a hook fits a request: 0 not at all, higher is better. A name with a version or stream suffix means exactly
 * that entry point. A base name means the newest form that the requested version has, and of that the per-thread
 * flavour if it is requested and exists: cuMemGetInfo at 13000 is cuMemGetInfo_v2, although a cuMemGetInfo is exported
 * too. A negative version is a very large one, as it is to drivers.
 */
static int fits(const struct wrapper *hook, const char *symbol, int version, bool per_thread)
{
	struct symbol_parts own = parts_of(hook->name);

	if (symbol[parts_of(symbol).base])
		return strcmp(hook->name, symbol) == 0;
	if (!same_base(hook->name, symbol) || hook->since > (uint32_t)version || (own.per_thread && !per_thread))
		return 0;
	return 2 * own.version + own.per_thread;
}

/* Our wrapper of the function that the driver returned. Drivers may give one function two names. */
static void *wrapper_of(void *real, const char *symbol, int version, bool per_thread)
{
	void *best = NULL;
	int best_fit = -1;

	for (size_t i = 0; i < WRAPPERS; i++) {
		int fit = real_of(&wrappers[i]) == real ? fits(&wrappers[i], symbol, version, per_thread) : -1;

		if (fit > best_fit) {
			best = wrappers[i].wrapper;
			best_fit = fit;
		}
	}
	return best;
}

/* The meaning of a name by the versions of hooks.def, for drivers that return functions other than their exports, or
 * that have no cuGetProcAddress. With `only_present`, entries that the driver lacks do not count. */
static const struct wrapper *hook_by_name(const char *symbol, int version, bool per_thread, bool only_present)
{
	const struct wrapper *best = NULL;
	int best_fit = 0;

	for (size_t i = 0; i < WRAPPERS; i++) {
		const struct wrapper *hook = &wrappers[i];
		int fit = fits(hook, symbol, version, per_thread);

		if (fit > best_fit && (!only_present || real_of(hook))) {
			best = hook;
			best_fit = fit;
		}
	}
	return best;
}

/* True if some form of this function is wrapped. With `only_guards`, query and wait functions do not count. */
static bool is_hooked_base(const char *symbol, bool only_guards)
{
	for (size_t i = 0; i < WRAPPERS; i++) {
		uint32_t group = wrappers[i].group;

		if ((!only_guards || (group != HOOK_GROUP_settle && group != HOOK_GROUP_info)) &&
		    same_base(wrappers[i].name, symbol))
			return true;
	}
	return false;
}

/* True if the driver's result is one of the functions that forward.def lists as needing no hook. */
static bool is_forwarded(const char *symbol, const void *real)
{
	static const char *const versions[] = { "", "_v2", "_v3", "_v4", "_v5" };
	static const char *const flavours[] = { "", "_ptsz", "_ptds" };
	char name[NAME_MAX_BYTES];

	for (size_t v = 0; v < sizeof(versions) / sizeof(versions[0]); v++) {
		for (size_t f = 0; f < sizeof(flavours) / sizeof(flavours[0]); f++) {
			int n = snprintf(name, sizeof(name), "%s%s%s", symbol, versions[v], flavours[f]);

			if (n > 0 && (size_t)n < sizeof(name) && driver_forwards(name) &&
			    (!real || driver_symbol(name) == real))
				return true;
		}
	}
	return false;
}

/* The three entry points. The first form has no status: where the others return success with NULL and a reason, it
 * returns CUDA_ERROR_NOT_FOUND and leaves the caller's pointer alone. */
enum form { FIRST_FORM, SECOND_FORM, SECOND_FORM_PER_THREAD };

/* Call the driver with the caller's request. *ret_found is NULL where the driver has no such function. */
static CUresult ask_driver(enum form form, const char *symbol, void **ret_found, int version, cuuint64_t flags,
                           CUdriverProcAddressQueryResult *status)
{
	CUresult r;

	if (form == SECOND_FORM_PER_THREAD && driver.cuGetProcAddress_v2_ptsz)
		return driver.cuGetProcAddress_v2_ptsz(symbol, ret_found, version, flags, status);
	if (form != FIRST_FORM && driver.cuGetProcAddress_v2)
		return driver.cuGetProcAddress_v2(symbol, ret_found, version, flags, status);
	if (driver.cuGetProcAddress) {
		r = driver.cuGetProcAddress(symbol, ret_found, version, flags);
		if (form == FIRST_FORM || (r != CUDA_SUCCESS && r != CUDA_ERROR_NOT_FOUND))
			return r;
		/* a driver of CUDA 11, called through a form that it does not have */
		if (status)
			*status = r ? CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND : CU_GET_PROC_ADDRESS_SUCCESS;
		return CUDA_SUCCESS;
	}
	r = driver.cuGetProcAddress_v2(symbol, ret_found, version, flags, status);
	return r == CUDA_SUCCESS && !*ret_found ? CUDA_ERROR_NOT_FOUND : r;
}

/* True if this driver returns the functions that it exports. All known ones do. */
static bool answers_exports(void)
{
	static int known; /* 0 not checked, 1 yes, 2 no; racing threads get the same result */
	int now = __atomic_load_n(&known, __ATOMIC_RELAXED);
	void *pfn = NULL;

	if (now == 0) {
		now = ask_driver(FIRST_FORM, "cuDeviceGetCount", &pfn, 12000, 0, NULL) == CUDA_SUCCESS && pfn &&
		                      pfn == (void *)driver.cuDeviceGetCount
		              ? 1
		              : 2;
		__atomic_store_n(&known, now, __ATOMIC_RELAXED);
	}
	return now == 1;
}

/*
 * A function was handed out that is in none of our lists. That is a gap in the lists if neither the requested version
 * nor the driver is newer than they are: functions of a newer driver cannot be in the lists, and counting them for
 * every program on it would make the count worthless.
 */
static void handed_out_unknown(int version)
{
	int newest = 0;

	if (driver.cuDriverGetVersion && driver.cuDriverGetVersion(&newest) != CUDA_SUCCESS)
		newest = 0;
	if ((uint32_t)version <= CUDA_NEWEST_LISTED || newest <= CUDA_NEWEST_LISTED)
		guest_count_unknown_symbol();
}

/* A driver without cuGetProcAddress is older than 11.3, which introduced it: a request for 11.3 or later means the
 * newest form that it exports. */
static void *newest_export(const char *symbol, int version, bool per_thread)
{
	static const char *const flavours[] = { "_ptsz", "_ptds", "" };
	char name[NAME_MAX_BYTES];
	void *found;

	if (version < 11030 || symbol[parts_of(symbol).base])
		return driver_symbol(symbol);
	for (int v = 9; v >= 1; v--) {
		for (size_t f = per_thread ? 0 : 2; f < sizeof(flavours) / sizeof(flavours[0]); f++) {
			int n = v > 1 ? snprintf(name, sizeof(name), "%s_v%d%s", symbol, v, flavours[f])
			              : snprintf(name, sizeof(name), "%s%s", symbol, flavours[f]);

			if (n > 0 && (size_t)n < sizeof(name) && (found = driver_symbol(name)))
				return found;
		}
	}
	return NULL;
}

/* Its exports are complete. A form of a wrapped function that is not among the wrapped ones is not returned. */
static void *look_up_ourselves(const char *symbol, int version, bool per_thread, CUdriverProcAddressQueryResult *status)
{
	const struct wrapper *hook = hook_by_name(symbol, version, per_thread, true);
	bool guarded = is_hooked_base(symbol, false);
	void *found = hook ? hook->wrapper : NULL;

	if (!hook && !guarded)
		found = newest_export(symbol, version, per_thread);
	*status = found     ? CU_GET_PROC_ADDRESS_SUCCESS
	          : guarded ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
	                    : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	if (found && !hook && !is_forwarded(symbol, NULL))
		handed_out_unknown(version);
	return found;
}

/* Our result instead of the driver's `real`; NULL: a newer, unknown form of a guarded function. Absent is the only safe
 * result for that: an older wrapper has other parameters, and unguarded it would bypass the caps. */
static void *instead_of(void *real, const char *symbol, int version, bool per_thread)
{
	const struct wrapper *hook;
	void *wrapper = wrapper_of(real, symbol, version, per_thread);

	if (!wrapper && !answers_exports()) {
		hook = hook_by_name(symbol, version, per_thread, false);
		wrapper = hook ? hook->wrapper : NULL;
	}
	if (wrapper)
		return wrapper;
	if (is_forwarded(symbol, answers_exports() ? real : NULL))
		return real;
	if (is_hooked_base(symbol, true))
		return NULL;
	handed_out_unknown(version);
	return real;
}

static CUresult look_up(enum form form, const char *symbol, void **pfn, int version, cuuint64_t flags,
                        CUdriverProcAddressQueryResult *status)
{
	CUdriverProcAddressQueryResult unused = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND, *why = status ? status : &unused;
	bool per_thread = form == SECOND_FORM_PER_THREAD, queried = true;
	void *found = NULL;
	CUresult r = CUDA_SUCCESS;

	if (flags & CU_GET_PROC_ADDRESS_LEGACY_STREAM)
		per_thread = false;
	if (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)
		per_thread = true;
	if (driver_load() != 0)
		return CUDA_ERROR_NOT_FOUND;
	if (!driver.cuGetProcAddress_v2 && !driver.cuGetProcAddress) {
		if (!symbol || !pfn)
			return CUDA_ERROR_INVALID_VALUE;
		found = look_up_ourselves(symbol, version, per_thread, why);
		queried = false;
	} else if (!symbol || !pfn) {
		return ask_driver(form, symbol, pfn, version, flags, status);
	} else {
		r = ask_driver(form, symbol, &found, version, flags, why);
	}
	if (r != CUDA_SUCCESS)
		return r;
	if (found && queried) {
		found = instead_of(found, symbol, version, per_thread);
		if (!found)
			*why = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
	}
	if (!found && form == FIRST_FORM)
		return CUDA_ERROR_NOT_FOUND;
	*pfn = found;
	return CUDA_SUCCESS;
}

CUresult cuGetProcAddress(const char *symbol, void **pfn, int version, cuuint64_t flags)
{
	return look_up(FIRST_FORM, symbol, pfn, version, flags, NULL);
}

CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status)
{
	return look_up(SECOND_FORM, symbol, pfn, version, flags, status);
}

/* The entry point that a program compiled for per-thread default streams links to: the same, with the other default. */
CUresult cuGetProcAddress_v2_ptsz(const char *symbol, void **pfn, int version, cuuint64_t flags,
                                  CUdriverProcAddressQueryResult *status)
{
	return look_up(SECOND_FORM_PER_THREAD, symbol, pfn, version, flags, status);
}

/* --- cuGetExportTable -------------------------------------------------------------------------------------------- */

/*
 * The driver's private tables, by the first four bytes of their UUID (names as ZLUDA worked them out). Refusing them
 * would break the static CUDA runtime. No known slot allocates device memory or launches a kernel, one creates
 * contexts; a table that is not in the list is handed out and counted, so that the daemon can report it.
 */
static const struct known_table {
	uint8_t id[4];
	bool makes_contexts;
} known_tables[] = {
	{ { 0x6b, 0xd5, 0xfb, 0x6c }, false }, /* CUDART_INTERFACE: module loading, primary context */
	{ { 0x0c, 0xa5, 0x0b, 0x8c }, true },  /* CTX_CREATE_BYPASS */
	{ { 0x19, 0x5b, 0xcb, 0xf4 }, false }, /* HEAP_ACCESS: host-side records */
	{ { 0xc6, 0x93, 0x33, 0x6e }, false }, /* CONTEXT_LOCAL_STORAGE */
	{ { 0x42, 0xd8, 0x5a, 0x81 }, false }, /* TOOLS_TLS */
	{ { 0xa0, 0x94, 0x79, 0x8c }, false }, /* TOOLS_RUNTIME_CALLBACK_HOOKS */
	{ { 0xb1, 0x05, 0x41, 0xe1 }, false }, /* device attributes */
	{ { 0x26, 0x3e, 0x88, 0x60 }, false }, /* context checks */
	{ { 0xdd, 0x9e, 0x98, 0xa4 }, false }, /* hybrid runtime */
	{ { 0xd4, 0x08, 0x20, 0x55 }, false }, /* INTEGRITY_CHECK: hashes driver state, which stays as it is */
	{ { 0x21, 0x31, 0x8c, 0x60 }, false }, /* cuBLAS and the other math libraries; see docs/security.md */
	{ { 0x7c, 0xb6, 0x3f, 0x9b }, false }, /* CUPTI: profiling */
	/* seen on an H200 with driver 580, where NVML never showed more memory of such a program than was charged: */
	{ { 0x69, 0xa2, 0x8e, 0x9f }, false }, /* every program that compiles PTX */
	{ { 0xf8, 0xcf, 0xf9, 0x51 }, false }, /* the static runtime of CUDA 13 requires it */
	{ { 0xda, 0x91, 0x51, 0xd3 }, false }, /* CuPy */
};

#define BYPASS_SLOT 1
#define BYPASS_SLOTS 64 /* far more than the table has */

static void *bypass_table[BYPASS_SLOTS];

/* A copy of the table with our own function in the slot that creates contexts. Slot 0 is its size in bytes. */
static const void *guarded(const void *table)
{
	void *const *slots = table;
	uintptr_t bytes = (uintptr_t)slots[0];
	size_t count = bytes / sizeof(void *);

	if (bytes % sizeof(void *) || count <= BYPASS_SLOT || count > BYPASS_SLOTS)
		return NULL;
	context_set_bypass(slots[BYPASS_SLOT]);
	for (size_t i = 0; i < count; i++)
		__atomic_store_n(&bypass_table[i], i == BYPASS_SLOT ? context_bypass() : slots[i], __ATOMIC_RELAXED);
	return bypass_table;
}

CUresult cuGetExportTable(const void **table, const CUuuid *id)
{
	const struct known_table *known = NULL;
	const void *copy;
	CUresult r;

	driver_load();
	if (!driver.cuGetExportTable)
		return CUDA_ERROR_NOT_FOUND;
	r = driver.cuGetExportTable(table, id);
	if (r != CUDA_SUCCESS || !table || !*table || !id)
		return r;
	for (size_t i = 0; i < sizeof(known_tables) / sizeof(known_tables[0]) && !known; i++)
		if (memcmp(known_tables[i].id, id->bytes, sizeof(known_tables[i].id)) == 0)
			known = &known_tables[i];
	if (known && known->makes_contexts) {
		copy = guarded(*table);
		if (!copy) { /* another table than expected: do not hand out an entry point that cannot be guarded */
			*table = NULL;
			guest_count_unknown_table();
			return CUDA_ERROR_INVALID_VALUE; /* the driver's result for a table that it does not have */
		}
		*table = copy;
	} else if (!known) {
		guest_count_unknown_table();
	}
	return r;
}

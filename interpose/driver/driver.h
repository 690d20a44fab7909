/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The real driver, as a typed table: `driver.cuMemAlloc_v2(…)`.
 *
 * Every entry starts as a stub that loads the driver and continues to the real function, so a call is correct at any
 * time; after driver_load() an entry is the driver's own function, or NULL where that driver has none.
 */
#ifndef SLUICE_DRIVER_H
#define SLUICE_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nativecommon/cuda_abi.h"

/* The newest CUDA version whose symbols are listed (hooks.def, forward.def, cuda_symbols.txt). */
#define CUDA_NEWEST_LISTED 13050

struct driver_table {
#define HOOK(group, ret, name, params, since) ret(*name) params;
#define DRIVER_ONLY(ret, name, params) ret(*name) params;
#include "interpose/driver/hooks.def"
#undef HOOK
#undef DRIVER_ONLY
};

/* hidden: so the compiler knows that it is in this library, and jumps through it without asking for its address */
extern __attribute__((visibility("hidden"))) struct driver_table driver;

/* The wrappers, and the only symbols besides the forwarded ones that the export map lets out. */
#define HOOK(group, ret, name, params, since) __attribute__((visibility("default"))) ret name params;
#define DRIVER_ONLY(ret, name, params)
#include "interpose/driver/hooks.def"
#undef HOOK
#undef DRIVER_ONLY

/* Bit of sluice_usage_slot.hook_mask per group of hooks.def. */
enum driver_hook_group {
	HOOK_GROUP_resolve,
	HOOK_GROUP_context,
	HOOK_GROUP_memory,
	HOOK_GROUP_pool,
	HOOK_GROUP_vmm,
	HOOK_GROUP_info,
	HOOK_GROUP_launch,
	HOOK_GROUP_settle,
	HOOK_GROUP_copy,
	HOOK_GROUP_graph,
};

/* The groups that contain a hook. */
extern const uint64_t driver_hook_mask;

/* Load the real driver once; 0 or a negative errno (-ENOENT: none found). Cheap when loaded. */
int driver_load(void);
/* A symbol of the real driver, NULL if it has none. */
void *driver_symbol(const char *name);

/* True for a symbol that the interposer exports without a wrapper. */
bool driver_forwards(const char *name);

#endif

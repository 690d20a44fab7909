/* SPDX-License-Identifier: Apache-2.0 */
/* Trampolines of the management library; the same machinery as interpose/forward.S. */
#include "interpose/trampoline.h"

#define HOOK(ret, name, params) LAZY(name)
#define DRIVER_ONLY(ret, name, params) LAZY(name)
#define FORWARD(name) TRAMPOLINE(name)

	TRAMPOLINE_BEGIN
#include "interpose/nvml_shim/hooks.def"
#undef HOOK
#undef DRIVER_ONLY
#define HOOK(ret, name, params)
#define DRIVER_ONLY(ret, name, params) TRAMPOLINE(name)
#include "interpose/nvml_shim/hooks.def"
#include "interpose/nvml_shim/forward.def"
	trampoline_slow_path
	TRAMPOLINE_END

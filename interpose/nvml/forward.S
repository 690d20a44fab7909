/* SPDX-License-Identifier: Apache-2.0 */
/* Trampolines of the management library; the same machinery as interpose/driver/forward.S. */
#include "interpose/driver/trampoline.h"

#define HOOK(ret, name, params) LAZY(name)
#define DRIVER_ONLY(ret, name, params) LAZY(name)
#define FORWARD(name) TRAMPOLINE(name)

	TRAMPOLINE_BEGIN
#include "interpose/nvml/hooks.def"
#undef HOOK
#undef DRIVER_ONLY
#define HOOK(ret, name, params)
#define DRIVER_ONLY(ret, name, params) TRAMPOLINE(name)
#include "interpose/nvml/hooks.def"
#include "interpose/nvml/forward.def"
	trampoline_slow_path
	TRAMPOLINE_END

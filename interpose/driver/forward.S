/* SPDX-License-Identifier: Apache-2.0 */
/* Trampolines of the driver: every symbol that is only forwarded, and the lazy first call of every wrapped one. */
#include "interpose/driver/trampoline.h"

#define HOOK(group, ret, name, params, since) LAZY(name)
#define DRIVER_ONLY(ret, name, params) LAZY(name)
#define FORWARD(name) TRAMPOLINE(name)

	TRAMPOLINE_BEGIN
#include "interpose/driver/hooks.def"
#undef HOOK
#undef DRIVER_ONLY
#define HOOK(group, ret, name, params, since)
#define DRIVER_ONLY(ret, name, params) TRAMPOLINE(name)
#include "interpose/driver/hooks.def"
#include "interpose/driver/forward.def"
	trampoline_slow_path
	TRAMPOLINE_END

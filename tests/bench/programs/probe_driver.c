/* SPDX-License-Identifier: Apache-2.0 */
/* A driver with two calls, to measure probes at its entry points: the audit recognises a driver library by its
 * exports. */
#include <stdint.h>

#define API __attribute__((visibility("default")))

API int cuInit(unsigned flags);
API int cuLaunchKernel(uint64_t *launches);

API int cuInit(unsigned flags)
{
	return (int)flags;
}

/* Begins like a real one: by saving registers. */
API int cuLaunchKernel(uint64_t *launches)
{
	++*launches;
#ifdef __x86_64__
	__asm__ volatile("" ::: "rbx", "r12", "memory");
#endif
	return 0;
}

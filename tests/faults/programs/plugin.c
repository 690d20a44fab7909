/* SPDX-License-Identifier: Apache-2.0 */
/* A plugin that is linked to the driver, as Python's extensions are; asker.c loads it in unusual ways. */
#include <stddef.h>
#include <stdint.h>

#define BLOCK ((size_t)256 << 20)
#define MOST_BLOCKS 12

int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxSetCurrent(void *context);
int cuMemAlloc_v2(uint64_t *at, size_t bytes);
long plugin_take(int *ret_error);

long plugin_take(int *ret_error)
{
	void *context;
	uint64_t at;
	long blocks = 0;

	*ret_error = cuInit(0);
	if (*ret_error == 0)
		*ret_error = cuDevicePrimaryCtxRetain(&context, 0);
	if (*ret_error == 0)
		*ret_error = cuCtxSetCurrent(context);
	if (*ret_error != 0)
		return 0;
	while (blocks < MOST_BLOCKS && (*ret_error = cuMemAlloc_v2(&at, BLOCK)) == 0)
		blocks++;
	return blocks;
}

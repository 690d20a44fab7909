/* SPDX-License-Identifier: Apache-2.0 */
/* cuGetProcAddress, exact about version and flags, over our own exports, like a driver's; and private tables. */
#include <dlfcn.h>

#include "tests/interpose/stub/stub.h"

/* Newest first: the first existing one whose version does not exceed the requested one is returned. */
static const struct {
	const char *base, *symbol;
	int since;
} versions[] = {
	{ "cuCtxCreate", "cuCtxCreate_v4", 12050 },
	{ "cuCtxCreate", "cuCtxCreate_v2", 3020 },
	{ "cuGetProcAddress", "cuGetProcAddress_v2", 12000 },
	{ "cuGetProcAddress", "cuGetProcAddress", 11030 },
	{ "cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxRelease_v2", 11000 },
	{ "cuDevicePrimaryCtxReset", "cuDevicePrimaryCtxReset_v2", 11000 },
	{ "cuDeviceGetUuid", "cuDeviceGetUuid_v2", 11040 },
	{ "cuStubFuture", "cuStubFuture_v2", 13000 }, /* a function in none of the interposer's lists */
	{ "cuStubNext", "cuStubFuture_v2", 14000 },   /* a function newer than those lists */
	{ "cuMemCreate", "cuMemCreate_v7", 14000 },   /* a newer form of a function that must be guarded */
};

API CUresult cuStubFuture_v2(void)
{
	return CUDA_SUCCESS;
}
API CUresult cuMemCreate_v7(void)
{
	return CUDA_SUCCESS;
}

static void *self(void)
{
	static void *handle;
	Dl_info info;

	if (!handle && dladdr((void *)self, &info))
		handle = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
	return handle;
}

API CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int version, cuuint64_t flags,
                                 CUdriverProcAddressQueryResult *status)
{
	static const char *const suffixes[] = { "_v2", "" };
	char name[128];

	if (!symbol || !pfn)
		return CUDA_ERROR_INVALID_VALUE;
	*pfn = NULL;
	for (size_t i = 0; i < sizeof(versions) / sizeof(versions[0]) && !*pfn; i++)
		if (strcmp(versions[i].base, symbol) == 0 && version >= versions[i].since)
			*pfn = dlsym(self(), versions[i].symbol);
	for (int i = 0; i < 2 && !*pfn; i++) {
		/* every _v2 came with CUDA 3.2 to 4.0 */
		if (i == 0 && (version < 4000 || !strncmp(symbol, "cuMemCreate", 11)))
			continue;
		snprintf(name, sizeof(name), "%s%s_ptsz", symbol, suffixes[i]);
		if (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)
			*pfn = dlsym(self(), name);
		snprintf(name, sizeof(name), "%s%s", symbol, suffixes[i]);
		if (!*pfn)
			*pfn = dlsym(self(), name);
	}
	if (status)
		*status = *pfn ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	return CUDA_SUCCESS;
}
API CUresult cuGetProcAddress(const char *symbol, void **pfn, int version, cuuint64_t flags)
{
	void *found = NULL;

	cuGetProcAddress_v2(symbol, &found, version, flags, NULL);
	if (found)
		*pfn = found;
	return found ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* Two tables: the one that creates contexts (size, function), and an unknown one. */
static void *context_table[2] = { (void *)sizeof(context_table), (void *)cuCtxCreate_v2 };
static void *unknown_table[2] = { (void *)sizeof(unknown_table), NULL };

API CUresult cuGetExportTable(const void **table, const CUuuid *id)
{
	static const unsigned char makes_contexts[4] = { 0x0c, 0xa5, 0x0b, 0x8c };

	if (memcmp(id->bytes, makes_contexts, 4) == 0)
		*table = context_table;
	else if (id->bytes[0] == 0x77 || memcmp(id->bytes, "\x21\x31\x8c\x60", 4) == 0 ||
	         memcmp(id->bytes, "\x7c\xb6\x3f\x9b", 4) == 0)
		*table = unknown_table;
	else
		*table = NULL; /* and, like drivers: */
	return *table ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuGetProcAddress: by base name, CUDA version and default-stream flavour to one of this library's symbols. The rows
 * are those of the real driver; rows newer than the reported driver version are skipped, as the real driver does.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "simgpu/cuda/base/call.h"

static const struct {
	const char *name; /* the caller's request */
	unsigned since;
	const char *symbol;
} rows[] = {
#include "symbol_rows.inc"
};

#define ROWS (sizeof(rows) / sizeof(rows[0]))

static void *address[ROWS]; /* NULL: not simulated */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void find_addresses(void)
{
	Dl_info info;

	if (!dladdr((void *)find_addresses, &info))
		return;
	void *self = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD); /* exactly this copy, whatever else is preloaded */

	for (size_t i = 0; self && i < ROWS; i++)
		address[i] = dlsym(self, rows[i].symbol);
}

CUresult cuDriverGetVersion(int *version);

static bool per_thread_symbol(const char *symbol)
{
	size_t length = strlen(symbol);

	return length > 5 && (strcmp(symbol + length - 5, "_ptsz") == 0 || strcmp(symbol + length - 5, "_ptds") == 0);
}

SIM_API CUresult cuGetProcAddress_v2(const char *name, void **function, int version, cuuint64_t flags,
                                     CUdriverProcAddressQueryResult *status)
{
	bool want_per_thread = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, known = false,
	     best_per_thread = false;
	unsigned best_since = 0;

	if (!name || !function || flags > 3)
		return CUDA_ERROR_INVALID_VALUE;
	*function = NULL;
	pthread_once(&once, find_addresses);
	int driver_version = 0; /* symbols newer than the reported driver version do not exist */

	cuDriverGetVersion(&driver_version);
	for (size_t i = 0; i < ROWS; i++) {
		bool per_thread = per_thread_symbol(rows[i].symbol);

		if (!address[i] || rows[i].since > (unsigned)driver_version || strcmp(rows[i].name, name) != 0)
			continue;
		known = true;
		if (rows[i].since > (unsigned)version || (per_thread && !want_per_thread))
			continue;
		/* a per-thread flavour of the newest version beats the plain one; a newer version beats both */
		if (!*function || rows[i].since > best_since ||
		    (rows[i].since == best_since && per_thread && !best_per_thread)) {
			best_since = rows[i].since;
			best_per_thread = per_thread;
			*function = address[i];
		}
	}
	if (status)
		*status = *function ? CU_GET_PROC_ADDRESS_SUCCESS
		          : known   ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
		                    : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	return CUDA_SUCCESS; /* like drivers: success, NULL, and the reason in the status */
}

SIM_API CUresult cuGetProcAddress(const char *name, void **function, int version, cuuint64_t flags)
{
	void *found = NULL;
	CUresult r = function ? cuGetProcAddress_v2(name, &found, version, flags, NULL) : CUDA_ERROR_INVALID_VALUE;

	if (r == CUDA_SUCCESS && !found)
		return CUDA_ERROR_NOT_FOUND; /* and the pointer is left unchanged */
	if (found)
		*function = found;
	return r;
}

/*
 * The private tables of NVIDIA's own libraries are not part of this simulator. SLUICE_SIM_TABLES may name a library
 * that provides them: its cuGetExportTable is called with the same arguments and results.
 */
typedef CUresult (*table_provider)(const void **table, const CUuuid *id);

static table_provider provider;

static void find_provider(void)
{
	const char *path = getenv("SLUICE_SIM_TABLES");
	void *library = path && path[0] ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;

	if (path && path[0] && !library)
		fprintf(stderr, "simulated GPU: SLUICE_SIM_TABLES: %s\n", dlerror());
	provider = library ? (table_provider)dlsym(library, "cuGetExportTable") : NULL;
	if (library && !provider)
		fprintf(stderr, "simulated GPU: SLUICE_SIM_TABLES: %s has no cuGetExportTable\n", path);
}

SIM_API CUresult cuGetExportTable(const void **table, const CUuuid *id)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	if (!table || !id)
		return CUDA_ERROR_INVALID_VALUE;
	*table = NULL;
	pthread_once(&once, find_provider);
	return provider ? provider(table, id) : CUDA_ERROR_INVALID_VALUE; /* the drivers' error for an unknown table */
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A driver that exports every name and does nothing, to test which entry point a request for a name returns. The names
 * are those of interpose/driver/cuda_symbols.txt; the few functions cuInit needs are real.
 *
 * NAME_DRIVER_ABSENT   has no cuGetProcAddress, like drivers before 11.3 NAME_DRIVER_PRIVATE  returns functions that it
 * does not export; no driver does so today
 */
#include <stdint.h>
#include <string.h>

#define API __attribute__((visibility("default")))

/* Weak, so that the real ones below win. Each returns its own number, so that the linker cannot fold two into one. */
#define ROW(name, since, base)                                                                                         \
	API __attribute__((weak)) int name(void)                                                                       \
	{                                                                                                              \
		return __COUNTER__;                                                                                    \
	}
#include NAME_ROWS
#undef ROW

#define ROW(name, since, base)                                                                                         \
	static int private_##name(void)                                                                                \
	{                                                                                                              \
		return __COUNTER__;                                                                                    \
	}
#include NAME_ROWS
#undef ROW

static const struct row {
	const char *name, *base;
	uint32_t since;
	int (*exported)(void), (*hidden)(void);
} rows[] = {
#define ROW(name, since, base) { #name, #base, since, name, private_##name },
#include NAME_ROWS
#undef ROW
};

#define ROWS (sizeof(rows) / sizeof(rows[0]))

/* The driver's rule: the newest form that the version has, and of that the per-thread flavour if requested and
 * present. */
API int name_driver_lookup(const char *symbol, void **pfn, int version, uint64_t flags);
int name_driver_lookup(const char *symbol, void **pfn, int version, uint64_t flags)
{
	int best = 0;

	*pfn = NULL;
	for (size_t i = 0; i < ROWS; i++) {
		const char *suffix = rows[i].name + strlen(rows[i].base);
		int form = suffix[0] == '_' && suffix[1] == 'v' ? suffix[2] - '0' : 1;
		int per_thread = strstr(suffix, "_pt") != NULL, rank = 2 * form + per_thread;

		if (strcmp(rows[i].base, symbol) != 0 || rows[i].since > (uint32_t)version ||
		    (per_thread && !(flags & 2)) || rank <= best)
			continue;
		best = rank;
#ifdef NAME_DRIVER_PRIVATE
		*pfn = (void *)rows[i].hidden;
#else
		*pfn = (void *)rows[i].exported;
		(void)rows[i].hidden;
#endif
	}
	return *pfn ? 0 : 500;
}

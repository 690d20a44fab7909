/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An auditor of the dynamic linker (LD_AUDIT) that bypasses any library in front of the driver: every search for
 * libcuda.so.1 ends at $AUDITOR_LIBRARY, and every binding to one of its functions at the function of that file.
 */
#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

unsigned la_version(unsigned version);
char *la_objsearch(const char *name, uintptr_t *cookie, unsigned flag);
unsigned la_objopen(struct link_map *map, Lmid_t lmid, uintptr_t *cookie);
uintptr_t la_symbind64(Elf64_Sym *symbol, unsigned index, uintptr_t *reference, uintptr_t *definition, unsigned *flags,
                       const char *name);

unsigned la_version(unsigned version)
{
	return version;
}

char *la_objsearch(const char *name, uintptr_t *cookie, unsigned flag)
{
	char *library = getenv("AUDITOR_LIBRARY");

	(void)cookie;
	(void)flag;
	return library && !strcmp(name, "libcuda.so.1") ? library : (char *)name;
}

unsigned la_objopen(struct link_map *map, Lmid_t lmid, uintptr_t *cookie)
{
	(void)map;
	(void)lmid;
	(void)cookie;
	return LA_FLG_BINDTO | LA_FLG_BINDFROM;
}

uintptr_t la_symbind64(Elf64_Sym *symbol, unsigned index, uintptr_t *reference, uintptr_t *definition, unsigned *flags,
                       const char *name)
{
	static void *library;
	void *found;

	(void)index;
	(void)reference;
	(void)definition;
	(void)flags;
	if (strncmp(name, "cu", 2) != 0)
		return symbol->st_value;
	if (!library && getenv("AUDITOR_LIBRARY"))
		library = dlopen(getenv("AUDITOR_LIBRARY"), RTLD_NOW);
	found = library ? dlsym(library, name) : NULL;
	return found ? (uintptr_t)found : symbol->st_value;
}

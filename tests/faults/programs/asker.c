/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Takes device memory in blocks until one is refused, through a driver library that it finds in an unusual way, and
 * prints the result as one JSON object. Then holds the memory until its input ends.
 *
 *   plain    dlopen and dlsym
 *   walk     the first loaded object of that name, its symbols looked up by hand
 *   plugin   a plugin that is linked to the driver, opened with RTLD_DEEPBIND
 *   dlmopen  the same plugin in a namespace of its own
 */
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define BLOCK ((size_t)256 << 20)
#define MOST_BLOCKS 12

typedef int (*init_fn)(unsigned);
typedef int (*retain_fn)(void **, int);
typedef int (*current_fn)(void *);
typedef int (*alloc_fn)(uint64_t *, size_t);
typedef void *(*find_fn)(void *, const char *);

struct walked {
	const char *name;
	ElfW(Addr) base;
	const ElfW(Dyn) * dynamic;
};

static int visit(struct dl_phdr_info *info, size_t size, void *data)
{
	struct walked *w = data;
	const char *slash = strrchr(info->dlpi_name, '/');

	(void)size;
	if (strcmp(slash ? slash + 1 : info->dlpi_name, w->name) != 0)
		return 0;
	for (int i = 0; i < info->dlpi_phnum; i++)
		if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
			w->dynamic = (const ElfW(Dyn) *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
	w->base = info->dlpi_addr;
	return 1;
}

static void *walk(void *library, const char *symbol)
{
	struct walked w = { .name = "libcuda.so.1" };
	const ElfW(Sym) *table = NULL;
	const char *names = NULL;
	const char *end;

	(void)library;
	dl_iterate_phdr(visit, &w);
	for (const ElfW(Dyn) *d = w.dynamic; d && d->d_tag != DT_NULL; d++) {
		if (d->d_tag == DT_SYMTAB)
			table = (const ElfW(Sym) *)d->d_un.d_ptr;
		if (d->d_tag == DT_STRTAB)
			names = (const char *)d->d_un.d_ptr;
	}
	if (!table || !names)
		return NULL;
	end = names; /* linkers put the names right after the symbols */
	for (; (const char *)table < end; table++)
		if (table->st_shndx != SHN_UNDEF && !strcmp(names + table->st_name, symbol))
			return (void *)(w.base + table->st_value);
	return NULL;
}

static void *by_dlsym(void *library, const char *symbol)
{
	return dlsym(library, symbol);
}

static long take(void *library, find_fn find, int *ret_error)
{
	init_fn init = (init_fn)find(library, "cuInit");
	retain_fn retain = (retain_fn)find(library, "cuDevicePrimaryCtxRetain");
	current_fn current = (current_fn)find(library, "cuCtxSetCurrent");
	alloc_fn alloc = (alloc_fn)find(library, "cuMemAlloc_v2");
	void *context;
	uint64_t at;
	long blocks = 0;

	if (!init || !retain || !current || !alloc)
		return -1;
	*ret_error = init(0);
	if (*ret_error == 0)
		*ret_error = retain(&context, 0);
	if (*ret_error == 0)
		*ret_error = current(context);
	if (*ret_error != 0)
		return 0;
	while (blocks < MOST_BLOCKS && (*ret_error = alloc(&at, BLOCK)) == 0)
		blocks++;
	return blocks;
}

int main(int argc, char **argv)
{
	char rest[64];
	long blocks = -1;
	int error = 0;
	void *library;

	if (argc != 3) {
		fprintf(stderr, "usage: asker plain|walk|plugin|dlmopen LIBRARY\n");
		return 2;
	}
	library = !strcmp(argv[1], "dlmopen")  ? dlmopen(LM_ID_NEWLM, argv[2], RTLD_NOW)
	          : !strcmp(argv[1], "plugin") ? dlopen(argv[2], RTLD_NOW | RTLD_DEEPBIND)
	                                       : dlopen(argv[2], RTLD_NOW);
	if (!library) {
		printf("{\"not_loaded\": true}\n");
		fprintf(stderr, "asker: %s\n", dlerror());
		return 3;
	}
	if (!strcmp(argv[1], "plain") || !strcmp(argv[1], "walk")) {
		blocks = take(library, strcmp(argv[1], "walk") ? by_dlsym : walk, &error);
	} else {
		long (*plugin)(int *) = (long (*)(int *))dlsym(library, "plugin_take");

		if (plugin)
			blocks = plugin(&error);
	}
	printf("{\"got_bytes\": %lld, \"error\": %d}\n", (long long)blocks * (long long)BLOCK, error);
	fflush(stdout);
	while (fgets(rest, sizeof(rest), stdin))
		;
	return 0;
}

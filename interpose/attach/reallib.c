/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the real library in whose place this one is loaded.
 *
 * A library counts as "ourselves" by device and inode before dlopen and by our marker symbol after it, because a second
 * copy of us must not become our driver: the two would call each other for ever.
 */
#include "interpose/attach/places.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "interpose/attach/oldglibc.h"
#include "proto/region.h"

/* Marks a library as one of Sluice's; never called. */
__attribute__((visibility("default"))) int sluice_interposer_major(void);
int sluice_interposer_major(void)
{
	return SLUICE_REGION_MAJOR;
}

static bool same_file(const struct stat *a, const struct stat *b)
{
	return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* dlopen `path`; NULL if it is one of Sluice's or does not load. */
static void *open_real(const char *path)
{
	struct stat own, other;
	Dl_info info;
	void *handle;

	if (old_stat(path, &other) != 0)
		return NULL;
	if (dladdr((void *)open_real, &info) && info.dli_fname && old_stat(info.dli_fname, &own) == 0 &&
	    same_file(&own, &other))
		return NULL;
	handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (handle && dlsym(handle, "sluice_interposer_major")) {
		dlclose(handle);
		return NULL;
	}
	return handle;
}

/* The directories in which the loader would search for a library that we request: RUNPATH, LD_LIBRARY_PATH, system. */
static void *search_like_loader(const char *soname)
{
	char path[PATH_MAX];
	void *self, *found = NULL;
	Dl_serinfo size, *list;
	Dl_info info;

	self = dladdr((void *)open_real, &info) && info.dli_fname ? dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD)
	                                                          : NULL;
	if (!self)
		return NULL;
	if (dlinfo(self, RTLD_DI_SERINFOSIZE, &size) == 0 && (list = malloc(size.dls_size))) {
		*list = size;
		if (dlinfo(self, RTLD_DI_SERINFO, list) == 0) {
			for (unsigned int i = 0; i < list->dls_cnt && !found; i++) {
				int n = snprintf(path, sizeof(path), "%s/%s", list->dls_serpath[i].dls_name, soname);

				if (n > 0 && (size_t)n < sizeof(path))
					found = open_real(path);
			}
		}
		free(list);
	}
	dlclose(self);
	return found;
}

void *reallib_open(const char *path, const char *soname)
{
	/* driver directories that only /etc/ld.so.cache lists */
	static const char *const more[] = { "/usr/lib/x86_64-linux-gnu",
		                            "/usr/lib/aarch64-linux-gnu",
		                            "/usr/lib64",
		                            "/usr/local/nvidia/lib64",
		                            "/usr/lib/x86_64-linux-gnu/nvidia/current",
		                            "/usr/lib/wsl/lib",
		                            "/run/opengl-driver/lib" };
	char candidate[PATH_MAX];
	void *found;

	/* A path in the region is binding: falling back to a search could find the wrong library. */
	if (path)
		return open_real(path);
	snprintf(candidate, sizeof(candidate), "/run/sluice/driver/%s",
	         soname); /* in a container where ours is mounted over it */
	found = open_real(candidate);
	if (!found)
		found = search_like_loader(soname);
	for (size_t i = 0; i < sizeof(more) / sizeof(more[0]) && !found; i++) {
		snprintf(candidate, sizeof(candidate), "%s/%s", more[i], soname);
		found = open_real(candidate);
	}
	return found;
}

void *reallib_open_other(const char *path, const char *soname)
{
	/* The loader answers a name with the first loaded library that has it as its soname. A program that requests the
	 * name later must get ours, so ours is loaded first. */
	void *ours = dlopen(soname, RTLD_NOW | RTLD_LOCAL);

	if (ours && !dlsym(ours, "sluice_interposer_major"))
		dlclose(ours); /* the program was not given ours: nothing to keep */
	return reallib_open(path, soname);
}

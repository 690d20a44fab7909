/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeps the library loadable where glibc is older than the one it was built with (2.28 is enough): tenants bring their
 * own C library in their own image. The build includes it into every file that is linked into a tenant.
 *
 * glibc 2.34 merged libdl and libpthread into libc under new symbol versions; the old versions still exist, and
 * libdl.so.2 and libpthread.so.0 are linked explicitly for systems where those libraries define the functions. 2.33
 * gave stat and fstat new symbols: on the two supported architectures the kernel's struct equals glibc's.
 */
#ifndef SLUICE_OLDGLIBC_H
#define SLUICE_OLDGLIBC_H
#ifndef __ASSEMBLER__

#ifdef SLUICE_OLD_SYMBOLS /* not in sanitizer builds: their interceptors exist under the new versions only */
#if defined(__x86_64__)
#define SLUICE_GLIBC_BASE "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define SLUICE_GLIBC_BASE "GLIBC_2.17"
#endif

#define SLUICE_OLD(name) __asm__(".symver " #name "," #name "@" SLUICE_GLIBC_BASE)

SLUICE_OLD(dladdr);
SLUICE_OLD(dlclose);
SLUICE_OLD(dlopen);
SLUICE_OLD(dlsym);
SLUICE_OLD(pthread_key_create);
SLUICE_OLD(pthread_once);
SLUICE_OLD(pthread_setspecific);
SLUICE_OLD(pthread_getspecific);

#if defined(__x86_64__)
__asm__(".symver dlinfo,dlinfo@GLIBC_2.3.3");
#else
SLUICE_OLD(dlinfo);
#endif
#endif

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static inline int old_stat(const char *path, struct stat *st)
{
	return (int)syscall(SYS_newfstatat, AT_FDCWD, path, st, 0);
}

static inline int old_fstat(int fd, struct stat *st)
{
	return (int)syscall(SYS_fstat, fd, st);
}

#endif
#endif

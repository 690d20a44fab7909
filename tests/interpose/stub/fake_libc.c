/* SPDX-License-Identifier: Apache-2.0 */
/* A preload in front of malloc, dlsym, open and mmap at once, which forwards every call and counts it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/mman.h>

#define API __attribute__((visibility("default")))

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void __libc_free(void *);

API unsigned long fake_calls[4]; /* malloc, dlsym, open, mmap */

static void count(int what)
{
	__atomic_fetch_add(&fake_calls[what], 1, __ATOMIC_RELAXED);
}

API void *malloc(size_t bytes)
{
	count(0);
	return __libc_malloc(bytes);
}

API void *calloc(size_t n, size_t bytes)
{
	count(0);
	return __libc_calloc(n, bytes);
}

API void *realloc(void *p, size_t bytes)
{
	return __libc_realloc(p, bytes);
}

API void free(void *p)
{
	__libc_free(p);
}

API void *dlsym(void *restrict handle, const char *restrict name)
{
	static void *(*real)(void *, const char *);

	count(1);
	if (!real)
		real = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
	if (!real)
		real = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
	return real ? real(handle, name) : NULL;
}

API int open(const char *path, int flags, ...)
{
	static int (*real)(const char *, int, ...);
	va_list more;
	int mode;

	va_start(more, flags);
	mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, int) : 0;
	va_end(more);
	count(2);
	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "open");
	return real(path, flags, mode);
}

API void *mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset)
{
	static void *(*real)(void *, size_t, int, int, int, off_t);

	count(3);
	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "mmap");
	return real(address, bytes, protection, flags, fd, offset);
}

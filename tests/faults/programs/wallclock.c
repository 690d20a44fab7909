/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The wall clock of the programs that load it steps when the first eight bytes of $WALLCLOCK_FILE change: they are its
 * signed offset in seconds. Other clocks stay the kernel's; the machine's own clock is never changed.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int64_t none;
static int64_t *off_s = &none;
static int (*real_clock)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void)
{
	const char *path = getenv("WALLCLOCK_FILE");
	int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	void *map = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(*off_s), PROT_READ, MAP_SHARED, fd, 0);

	*(void **)&real_clock = dlsym(RTLD_NEXT, "clock_gettime");
	if (map != MAP_FAILED)
		off_s = map;
	if (fd >= 0)
		close(fd);
}

int clock_gettime(clockid_t id, struct timespec *t)
{
	int result;

	if (!real_clock)
		*(void **)&real_clock = dlsym(RTLD_NEXT, "clock_gettime");
	result = real_clock(id, t);
	if (result == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
		t->tv_sec += __atomic_load_n(off_s, __ATOMIC_RELAXED);
	return result;
}

int gettimeofday(struct timeval *restrict tv, void *restrict zone)
{
	struct timespec t;

	(void)zone;
	clock_gettime(CLOCK_REALTIME, &t);
	tv->tv_sec = t.tv_sec;
	tv->tv_usec = t.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *ret)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	if (ret)
		*ret = t.tv_sec;
	return t.tv_sec;
}

/* Waits until a time of the wall clock, as C++ libraries do themselves: the kernel's clock has no offset. */
long syscall(long number, ...)
{
	static long (*real)(long, ...);
	struct timespec until;
	va_list list;
	long a[6];

	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "syscall");
	va_start(list, number);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(list, long);
	va_end(list);
	if (number == SYS_futex && a[1] & FUTEX_CLOCK_REALTIME && a[3]) {
		until = *(const struct timespec *)a[3];
		until.tv_sec -= __atomic_load_n(off_s, __ATOMIC_RELAXED);
		if (until.tv_sec < 0)
			until.tv_sec = 0;
		a[3] = (long)&until;
	}
	return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

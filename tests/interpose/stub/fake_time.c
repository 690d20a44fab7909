/* SPDX-License-Identifier: Apache-2.0 */
/* The effect of a library like libfaketime: another date, and time that runs ten times as fast. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>

#define API __attribute__((visibility("default")))

static int real_clock(clockid_t id, struct timespec *t)
{
	static int (*real)(clockid_t, struct timespec *);

	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "clock_gettime");
	return real(id, t);
}

API int clock_gettime(clockid_t id, struct timespec *t)
{
	static struct timespec start[16];
	int result = real_clock(id, t);

	if (result == 0 && id >= 0 && id < 16) {
		if (start[id].tv_sec == 0)
			start[id] = *t;
		long long passed = (t->tv_sec - start[id].tv_sec) * 1000000000LL + t->tv_nsec - start[id].tv_nsec;
		long long shown = passed * 10 + start[id].tv_nsec;

		t->tv_sec = start[id].tv_sec + 86400 * 365 + shown / 1000000000LL;
		t->tv_nsec = shown % 1000000000LL;
	}
	return result;
}

API int gettimeofday(struct timeval *restrict tv, void *restrict zone)
{
	struct timespec t;

	(void)zone;
	clock_gettime(CLOCK_REALTIME, &t);
	tv->tv_sec = t.tv_sec;
	tv->tv_usec = t.tv_nsec / 1000;
	return 0;
}

API time_t time(time_t *ret)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	if (ret)
		*ret = t.tv_sec;
	return t.tv_sec;
}

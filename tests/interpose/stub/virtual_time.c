/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Virtual time for programs on a simulated GPU, preloaded: one clock for all of them, which moves only while they wait.
 *
 * One member runs at a time. One that sleeps, yields or waits on a futex notes when it wants to go on; the member that is
 * due first goes on, and the clock moves to that moment. So the load of the machine changes nothing, and each run has the
 * same result. The test that steers them loads this library too (it is member 0), and does the daemon's work in between.
 *
 * Only the thread that loads the library is a member. Without VIRTUAL_TIME in the environment all calls are libc's.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))

#define MEMBERS 32
#define READ_NS UINT64_C(20)    /* reading the clock takes so long, so that a loop that only reads it ends */
#define YIELD_NS UINT64_C(1000) /* sched_yield() returns after */
#define LATE_NS UINT64_C(55000) /* a sleep ends so late: the kernel's default timer slack, and a wake-up */
#define STUCK_S 60              /* of real time: then a member has died with the turn */
#define EPOCH_NS UINT64_C(1000000000000)

enum { ABSENT, RUNS, SLEEPS, ON_FUTEX, GONE };

struct member {
	uint32_t state;
	uint32_t turn; /* real futex: 1 = go on */
	uint64_t due_ns;
	uint64_t woken;
};

static struct shared {
	uint64_t now_ns;
	struct member member[MEMBERS];
} *shared;
static int self_index = -1;
static __thread bool is_member;

static long (*real_syscall)(long, ...);

static void find_real(void)
{
	if (!real_syscall)
		*(void **)&real_syscall = dlsym(RTLD_NEXT, "syscall");
}

static struct member *own(void)
{
	return &shared->member[self_index];
}

/* Give the turn to the member that is due first; of two, to the one with the lower number. True: that is this one. */
static bool pass_on(void)
{
	struct member *next = NULL;

	for (int i = 0; i < MEMBERS; i++) {
		struct member *m = &shared->member[i];

		if ((m->state == SLEEPS || m->state == ON_FUTEX) && (!next || m->due_ns < next->due_ns))
			next = m;
	}
	if (!next)
		return false;
	if (next->due_ns > shared->now_ns && next->due_ns != UINT64_MAX)
		shared->now_ns = next->due_ns;
	next->state = RUNS;
	if (next == own())
		return true;
	__atomic_store_n(&next->turn, 1, __ATOMIC_RELEASE);
	real_syscall(SYS_futex, &next->turn, FUTEX_WAKE, 1, NULL, NULL, 0);
	return false;
}

/* False: no member gave the turn for STUCK_S. */
static bool await_turn(void)
{
	struct timespec patience = { .tv_sec = STUCK_S };

	while (!__atomic_exchange_n(&own()->turn, 0, __ATOMIC_ACQUIRE))
		if (real_syscall(SYS_futex, &own()->turn, FUTEX_WAIT, 0, &patience, NULL, 0) < 0 && errno == ETIMEDOUT)
			return false;
	return true;
}

static bool wait_until(uint64_t due_ns, uint32_t state)
{
	own()->due_ns = due_ns;
	own()->state = state;
	if (pass_on() || await_turn())
		return true;
	if (self_index > 0)
		_exit(99);
	return false;
}

static void leave(void)
{
	if (!is_member || self_index <= 0)
		return;
	is_member = false;
	own()->state = GONE;
	pass_on();
}

static int join(const char *path, int index)
{
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);

	find_real();
	if (fd < 0 || ftruncate(fd, sizeof(*shared)) != 0)
		return -1;
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (shared == MAP_FAILED || index < 0 || index >= MEMBERS)
		return -1;
	self_index = index;
	is_member = true;
	return 0;
}

__attribute__((constructor)) static void begin(void)
{
	const char *path = getenv("VIRTUAL_TIME"), *index = getenv("VIRTUAL_MEMBER");

	if (!path || !index || join(path, atoi(index)) != 0)
		return;
	own()->due_ns = shared->now_ns; /* the test holds the turn until it has started everybody */
	__atomic_store_n(&own()->state, SLEEPS, __ATOMIC_RELEASE);
	if (!await_turn())
		_exit(99);
	atexit(leave);
}

/* --- for the test ------------------------------------------------------------------------------------------------- */

API int virtual_begin(const char *path)
{
	if (join(path, 0) != 0)
		return -1;
	shared->now_ns = EPOCH_NS;
	own()->state = RUNS;
	return 0;
}

API uint64_t virtual_now(void)
{
	return shared->now_ns;
}

API uint32_t virtual_state(int index)
{
	return __atomic_load_n(&shared->member[index].state, __ATOMIC_ACQUIRE);
}

/* 0: a member has died with the turn. */
API int virtual_sleep_until(uint64_t due_ns)
{
	return wait_until(due_ns, SLEEPS);
}

/* A page changed on which members may be waiting: they look again. */
API void virtual_wake(void)
{
	for (int i = 0; i < MEMBERS; i++) {
		struct member *m = &shared->member[i];

		if (m->state == ON_FUTEX && m->due_ns > shared->now_ns) {
			m->due_ns = shared->now_ns;
			m->woken = 1;
		}
	}
}

/* --- what members call -------------------------------------------------------------------------------------------- */

static uint64_t ns_of(const struct timespec *t)
{
	return (uint64_t)t->tv_sec * UINT64_C(1000000000) + (uint64_t)t->tv_nsec;
}

static int virtual_clock(struct timespec *t)
{
	shared->now_ns += READ_NS;
	t->tv_sec = (time_t)(shared->now_ns / UINT64_C(1000000000));
	t->tv_nsec = (long)(shared->now_ns % UINT64_C(1000000000));
	return 0;
}

/* The clock of the kernel's shared library would be another one. */
API unsigned long getauxval(unsigned long type)
{
	static unsigned long (*real)(unsigned long);

	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "getauxval");
	return type == AT_SYSINFO_EHDR && shared ? 0 : real(type);
}

API int clock_gettime(clockid_t id, struct timespec *t)
{
	find_real();
	if (!is_member || id == CLOCK_PROCESS_CPUTIME_ID || id == CLOCK_THREAD_CPUTIME_ID)
		return (int)real_syscall(SYS_clock_gettime, id, t);
	return virtual_clock(t);
}

API int sched_yield(void)
{
	find_real();
	if (!is_member)
		return (int)real_syscall(SYS_sched_yield);
	wait_until(shared->now_ns + YIELD_NS, SLEEPS);
	return 0;
}

API int nanosleep(const struct timespec *wanted, struct timespec *left)
{
	find_real();
	if (!is_member)
		return (int)real_syscall(SYS_nanosleep, wanted, left);
	wait_until(shared->now_ns + ns_of(wanted) + LATE_NS, SLEEPS);
	return 0;
}

API int usleep(useconds_t us)
{
	struct timespec t = { .tv_sec = us / 1000000, .tv_nsec = (long)(us % 1000000) * 1000 };

	return nanosleep(&t, NULL);
}

API int clock_nanosleep(clockid_t id, int flags, const struct timespec *wanted, struct timespec *left)
{
	uint64_t due_ns = ns_of(wanted);

	find_real();
	if (!is_member)
		return real_syscall(SYS_clock_nanosleep, id, flags, wanted, left) < 0 ? errno : 0;
	if (!(flags & TIMER_ABSTIME))
		due_ns += shared->now_ns;
	if (due_ns > shared->now_ns)
		wait_until(due_ns + LATE_NS, SLEEPS);
	return 0;
}

static long virtual_futex(const uint32_t *word, uint32_t value, const struct timespec *timeout)
{
	if (__atomic_load_n(word, __ATOMIC_ACQUIRE) != value) {
		errno = EAGAIN;
		return -1;
	}
	own()->woken = 0;
	wait_until(timeout ? shared->now_ns + ns_of(timeout) + LATE_NS : UINT64_MAX, ON_FUTEX);
	if (own()->woken)
		return 0;
	errno = ETIMEDOUT;
	return -1;
}

API long syscall(long number, ...)
{
	long a[6];
	va_list list;

	va_start(list, number);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(list, long);
	va_end(list);
	find_real();
	if (is_member && number == SYS_clock_gettime)
		return virtual_clock((struct timespec *)a[1]);
	if (is_member && number == SYS_futex && (a[1] & FUTEX_CMD_MASK) == FUTEX_WAIT)
		return virtual_futex((const uint32_t *)a[0], (uint32_t)a[2], (const struct timespec *)a[3]);
	return real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens a file through one of the system calls that can, for tests of detection: openat, io_uring, and on x86-64 the
 * system call of 32-bit programs. Prints "ready", waits for a line, opens, prints the errno (0: it is open), and
 * repeats until its input ends.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static int by_openat(const char *path)
{
	int fd = openat(AT_FDCWD, path, O_RDONLY | O_CLOEXEC);

	return fd < 0 ? -errno : fd;
}

/* One request through rings of our own, as liburing would make it. */
static int by_io_uring(const char *path)
{
	struct io_uring_params p = { 0 };
	int ring = (int)syscall(SYS_io_uring_setup, 1, &p);

	if (ring < 0)
		return -errno;
	size_t bytes = p.sq_off.array + p.sq_entries * sizeof(uint32_t);
	size_t done_bytes = p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe);
	char *sq = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
	char *cq = mmap(NULL, done_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_CQ_RING);
	struct io_uring_sqe *sqe =
		mmap(NULL, p.sq_entries * sizeof(*sqe), PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES);

	if (sq == MAP_FAILED || cq == MAP_FAILED || sqe == MAP_FAILED)
		return -errno;
	memset(sqe, 0, sizeof(*sqe));
	sqe->opcode = IORING_OP_OPENAT;
	sqe->fd = AT_FDCWD;
	sqe->addr = (uintptr_t)path;
	sqe->open_flags = O_RDONLY | O_CLOEXEC;
	*(uint32_t *)(sq + p.sq_off.array) = 0;
	__atomic_store_n((uint32_t *)(sq + p.sq_off.tail), 1, __ATOMIC_RELEASE);
	if (syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) < 0)
		return -errno;
	return ((struct io_uring_cqe *)(cq + p.cq_off.cqes))->res;
}

static int by_compat(const char *path)
{
#ifdef __x86_64__
	char *low = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
	long result;

	if (low == MAP_FAILED)
		return -errno;
	snprintf(low, 4096, "%s", path);
	__asm__ volatile("int $0x80"
	                 : "=a"(result)
	                 : "a"(5L), "b"(low), "c"(0L), "d"(0L)
	                 : "memory", "r8", "r9", "r10", "r11");
	return (int)result;
#else
	(void)path;
	return -ENOSYS;
#endif
}

int main(int argc, char **argv)
{
	char line[16];

	if (argc != 3) {
		fprintf(stderr, "usage: opener openat|io_uring|compat PATH\n");
		return 2;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	printf("ready\n");
	while (fgets(line, sizeof(line), stdin)) {
		int fd = !strcmp(argv[1], "io_uring") ? by_io_uring(argv[2])
		         : !strcmp(argv[1], "compat") ? by_compat(argv[2])
		                                      : by_openat(argv[2]);

		printf("%d\n", fd < 0 ? -fd : 0);
		if (fd >= 0)
			close(fd);
	}
	return 0;
}

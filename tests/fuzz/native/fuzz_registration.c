/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any peer at the other end of the registration socket, and any contents of /proc: a slot is taken only from a complete
 * and valid answer, nothing is written otherwise, and no thread waits past the deadline.
 *
 * The first byte selects the reader; see the three below for the rest. The system calls of attach.c are replaced here:
 * no file, socket or clock is touched, so the same input has the same result.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "nativecommon/clock.h"
#include "interpose/attach/oldglibc.h"
#include "interpose/attach/places.h"
#include "proto/register.h"

#define FD 1000000 /* not a real descriptor: calls that are not replaced here fail */
#define AGAIN 0xff
#define INTERRUPTED 0xfe
#define ENDED 0xfd

static const uint8_t *input;
static size_t left;
static uint64_t now_ns;
static unsigned polls;

static size_t take(void *into, size_t most)
{
	size_t n = left < most ? left : most;

	memcpy(into, input, n);
	input += n;
	left -= n;
	return n;
}

static int fuzz_open(const char *path, int flags)
{
	(void)path;
	(void)flags;
	return FD;
}

static ssize_t fuzz_read(int fd, void *into, size_t bytes)
{
	(void)fd;
	return (ssize_t)take(into, bytes);
}

static ssize_t fuzz_readlink(const char *path, char *into, size_t bytes)
{
	static const char namespace[] = "pid:[4026531836]";

	(void)path;
	memcpy(into, namespace, bytes < sizeof(namespace) ? bytes : sizeof(namespace) - 1);
	return (ssize_t)sizeof(namespace) - 1;
}

static int fuzz_socket(int domain, int type, int protocol)
{
	(void)domain;
	(void)type;
	(void)protocol;
	return FD;
}

static int fuzz_connect(int fd, const struct sockaddr *address, socklen_t bytes)
{
	uint8_t how = 0;

	(void)fd;
	(void)address;
	(void)bytes;
	(void)take(&how, 1);
	errno = how == AGAIN ? EAGAIN : how == INTERRUPTED ? EINTR : ECONNREFUSED;
	return how >= ENDED ? -1 : 0;
}

static ssize_t fuzz_send(int fd, const void *data, size_t bytes, int flags)
{
	(void)fd;
	(void)data;
	(void)flags;
	return (ssize_t)bytes;
}

/* One packet: a byte with its length or its error, and as many bytes. At the end of the input no packet comes. */
static ssize_t fuzz_recv(int fd, void *into, size_t most, int flags)
{
	uint8_t length = AGAIN, packet[256];
	size_t n;

	(void)fd;
	(void)flags;
	(void)take(&length, 1);
	if (length >= ENDED) {
		errno = length == AGAIN ? EAGAIN : length == INTERRUPTED ? EINTR : ECONNRESET;
		return -1;
	}
	n = take(packet, length);
	if (n > most) /* a packet is cut to the size of the buffer */
		n = most;
	memcpy(into, packet, n);
	return (ssize_t)n;
}

static int fuzz_poll(struct pollfd *fds, nfds_t count, int timeout_ms)
{
	(void)fds;
	(void)count;
	polls++;
	now_ns += (uint64_t)(timeout_ms > 3 ? 3 : timeout_ms < 1 ? 1 : timeout_ms) * 1000000;
	return 0;
}

static int fuzz_close(int fd)
{
	(void)fd;
	return 0;
}

#define open(path, flags) fuzz_open(path, flags)
#define read fuzz_read
#define readlink fuzz_readlink
#define socket fuzz_socket
#define connect fuzz_connect
#define send fuzz_send
#define recv fuzz_recv
#define poll(fds, count, timeout_ms) fuzz_poll(fds, count, timeout_ms) /* does not replace the name of struct pollfd */
#define close fuzz_close
#include "interpose/attach/attach.c"

uint64_t clock_ns(void)
{
	return now_ns;
}

const char *settings_grant_dir(void)
{
	return "/run/sluice/grants/g";
}

static void expect(int truth)
{
	if (!truth)
		abort();
}

/* /proc/self/stat: a number, or nothing written. */
static void identify(void)
{
	struct attach_identity who = { .ns_pid = 7, .starttime = 9 };
	int error = attach_identify(&who);

	expect(error <= 0);
	if (error)
		expect(who.ns_pid == 7 && who.starttime == 9 && !who.image && !who.process);
	else
		expect(who.ns_pid == (uint32_t)getpid() && who.process);
}

/* The boot's id: 32 digits with dashes anywhere between them, or nothing written. */
static void boot(void)
{
	uint8_t id[16];
	size_t digits = 0;
	const uint8_t *text = input;
	size_t most = left < 39 ? left : 39; /* as many as the reader takes */

	for (size_t i = 0; i < most && digits < 32; i++) {
		if (text[i] == '-')
			continue;
		if (!text[i] || !strchr("0123456789abcdef", text[i]))
			break;
		digits++;
	}
	memset(id, 0xa5, sizeof(id));
	expect((read_boot_id(id) == 0) == (digits == 32));
	for (size_t i = 0; digits < 32 && i < sizeof(id); i++)
		expect(id[i] == 0xa5);
}

/* The handshake: connects by its first bytes, packets after that. */
static void shake_hands(void)
{
	struct attach_identity who = { .ns_pid = 7, .starttime = 9 };
	struct attach_slot slot = { .slot = 0xa5a5a5a5, .generation = 2 };
	uint64_t began_ns = now_ns;
	int error = ask_daemon(&who, ~UINT64_C(0), &slot);

	expect(error <= 0);
	expect(attach_strerror(error) != NULL);
	if (error)
		expect(slot.slot == 0xa5a5a5a5 && slot.generation == 2);
	else
		expect(slot.slot < SLUICE_MAX_SLOTS && (slot.generation & 1));
	expect(now_ns - began_ns <= (SLUICE_REGISTER_DEADLINE_MS + 8) * UINT64_C(1000000));
	expect(polls <= SLUICE_REGISTER_DEADLINE_MS + 8);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t which = 0;

	input = data;
	left = size;
	now_ns = 1;
	polls = 0;
	if (size)
		(void)take(&which, 1);
	switch (which & 3) {
	case 0:
		identify();
		break;
	case 1:
		boot();
		break;
	default:
		shake_hands();
		break;
	}
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mapping the region and getting a slot.
 *
 * The region belongs to the grant, so one mapping serves the process and its forked children; the slot belongs to the
 * process. The daemon reads the client's identity from the kernel (SO_PEERCRED), never from the message. If it does not
 * answer within 250 ms, the process takes a slot by compare-and-swap and the daemon adopts that slot when it is back:
 * the limits are in the page, so a tenant gains nothing while the daemon is away.
 */
#include "interpose/attach/attach.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
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

#include "interpose/attach/oldglibc.h"

#include "nativecommon/clock.h"
#include "interpose/attach/places.h"
#include "proto/register.h"

#define FIRST_PAUSE_MS 4 /* pause before a retry, doubled each time: six tries within the deadline */

static const struct sluice_policy *mapped_policy;
static struct sluice_usage *mapped_usage;

/* The registration socket stays open for as long as the process lives. Its inode is kept as well, so that a child or a
 * second registration never closes a descriptor that the application has reused. */
static int kept_fd = -1;
static dev_t kept_dev;
static ino_t kept_ino;

static uint64_t now_ms(void)
{
	return clock_ns() / 1000000;
}

/* Return 0 and the 16 bytes, or -ENOENT where /proc does not show them (then the check is skipped). */
static int read_boot_id(uint8_t ret_id[16])
{
	char text[40] = { 0 };
	unsigned int digits = 0, value = 0;
	uint8_t id[16];
	int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return -ENOENT;
	ssize_t n = read(fd, text, sizeof(text) - 1);

	close(fd);
	for (ssize_t i = 0; i < n && digits < 32; i++) {
		char c = text[i];

		if (c == '-')
			continue;
		if (c >= '0' && c <= '9')
			value = value << 4 | (unsigned int)(c - '0');
		else if (c >= 'a' && c <= 'f')
			value = value << 4 | (unsigned int)(c - 'a' + 10);
		else
			break;
		if (digits++ & 1)
			id[digits / 2 - 1] = (uint8_t)value;
	}
	if (digits != 32)
		return -ENOENT;
	memcpy(ret_id, id, sizeof(id));
	return 0;
}

static int map_file(int dir, const char *name, int flags, int protection, size_t bytes, void **ret_address)
{
	struct stat st;
	void *address;
	int fd, error = 0;

	fd = openat(dir, name, flags | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	if (old_fstat(fd, &st) != 0)
		error = -errno;
	else if (!S_ISREG(st.st_mode) || st.st_size != (off_t)bytes)
		error = -EBADMSG; /* reading past the end of a short file would be a SIGBUS later */
	if (!error) {
		address = mmap(NULL, bytes, protection, MAP_SHARED, fd, 0);
		if (address == MAP_FAILED)
			error = -errno;
		else
			*ret_address = address;
	}
	close(fd);
	return error;
}

int attach_map(struct attach_region *ret_region)
{
	const struct sluice_policy *policy, *unmapped = NULL;
	struct sluice_usage *usage;
	void *policy_map = NULL, *usage_map = NULL;
	uint8_t boot_id[16];
	const char *path;
	int dir, error;

	policy = __atomic_load_n(&mapped_policy, __ATOMIC_ACQUIRE);
	if (policy) {
		*ret_region = (struct attach_region){ policy, mapped_usage };
		return 0;
	}
	path = settings_grant_dir();
	if (!path)
		return -ENOENT;
	dir = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0)
		return -errno;
	error = map_file(dir, SLUICE_POLICY_FILE, O_RDONLY, PROT_READ, SLUICE_POLICY_BYTES, &policy_map);
	if (!error)
		error = sluice_policy_check(policy_map, SLUICE_POLICY_BYTES,
		                            read_boot_id(boot_id) == 0 ? boot_id : NULL);
	if (!error)
		error = map_file(dir, SLUICE_USAGE_FILE, O_RDWR, PROT_READ | PROT_WRITE, SLUICE_USAGE_BYTES,
		                 &usage_map);
	if (!error)
		error = sluice_usage_check(usage_map, SLUICE_USAGE_BYTES);
	close(dir);
	if (!error) {
		policy = policy_map;
		usage = usage_map;
		/* usage goes first: a thread that sees the policy must see it too. Racing threads store mappings of one
		 * file. */
		struct sluice_usage *none = NULL;

		if (__atomic_compare_exchange_n(&mapped_usage, &none, usage, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
			usage_map = NULL;
		if (__atomic_compare_exchange_n(&mapped_policy, &unmapped, policy, false, __ATOMIC_ACQ_REL,
		                                __ATOMIC_ACQUIRE))
			policy_map = NULL;
		*ret_region = (struct attach_region){ mapped_policy, mapped_usage };
	}
	if (policy_map)
		munmap(policy_map, SLUICE_POLICY_BYTES);
	if (usage_map)
		munmap(usage_map, SLUICE_USAGE_BYTES);
	return error;
}

const char *attach_driver_path(void)
{
	struct attach_region region = { 0 };
	const struct sluice_policy *policy = attach_map(&region) == 0 ? region.policy : NULL;

	return policy && policy->driver_path[0] == '/' ? (const char *)policy->driver_path : NULL;
}

/* The inode number of the pid namespace, which the kernel gives to one namespace at a time; 0 where /proc does not show
 * it. */
static uint64_t pid_namespace(void)
{
	char text[40]; /* "pid:[4026531836]" */
	ssize_t n = readlink("/proc/self/ns/pid", text, sizeof(text) - 1);
	const char *digits;

	if (n <= 0)
		return 0;
	text[n] = 0;
	digits = strchr(text, '[');
	return digits ? strtoull(digits + 1, NULL, 10) : 0;
}

/* Returns 0 when one of the three is unknown. Two processes share a result with probability 2^-64. */
static uint64_t process_of(uint64_t namespace, uint32_t ns_pid, uint64_t starttime)
{
	uint64_t mix = namespace << 32 ^ ns_pid;

	if (!namespace)
		return 0;
	mix = (mix ^ mix >> 31) * UINT64_C(0x9e3779b97f4a7c15) ^ starttime;
	mix = (mix ^ mix >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	mix = (mix ^ mix >> 27) * UINT64_C(0x94d049bb133111eb);
	return mix ^ mix >> 31;
}

/* The field of /proc/PID/stat that lies `ahead` fields after `at`; NULL when there are fewer. */
static char *field_after(char *at, int ahead)
{
	for (int field = 0; at && field < ahead; field++)
		at = strchr(at + 1, ' ');
	return at;
}

int attach_identify(struct attach_identity *ret_identity)
{
	char text[1024]; /* the name is at most 64 bytes, the numbers up to the stack's begin 25 * 20 */
	unsigned long long starttime;
	char *at, *rest;
	ssize_t n;
	int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return -errno;
	n = read(fd, text, sizeof(text) - 1);
	close(fd);
	if (n <= 0)
		return -EIO;
	text[n] = 0;
	at = strrchr(text, ')'); /* the name may hold spaces and brackets: the last bracket ends it */
	at = field_after(at, 22 - 2);
	if (!at)
		return -EPROTO;
	errno = 0;
	starttime = strtoull(at + 1, &rest, 10);
	if (errno || rest == at + 1)
		return -EPROTO;
	ret_identity->starttime = starttime;
	at = field_after(at, 28 - 22);
	ret_identity->image = at ? strtoull(at + 1, NULL, 10) : 0;
	ret_identity->ns_pid = (uint32_t)getpid();
	ret_identity->process = process_of(pid_namespace(), ret_identity->ns_pid, ret_identity->starttime);
	return 0;
}

static void drop_kept_socket(void)
{
	struct stat st;

	if (kept_fd >= 0 && old_fstat(kept_fd, &st) == 0 && S_ISSOCK(st.st_mode) && st.st_dev == kept_dev &&
	    st.st_ino == kept_ino)
		close(kept_fd);
	kept_fd = -1;
}

static void keep_socket(int fd)
{
	struct stat st;

	drop_kept_socket();
	if (old_fstat(fd, &st) != 0)
		return;
	kept_fd = fd;
	kept_dev = st.st_dev;
	kept_ino = st.st_ino;
}

/* Connect within the deadline. A Unix socket with a full backlog answers EAGAIN: try again. */
static int connect_daemon(const char *dir, uint64_t deadline_ms)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd, n, dir_fd = -1;

	n = snprintf(address.sun_path, sizeof(address.sun_path), "%s/" SLUICE_SOCKET_FILE, dir);
	if (n < 0 || (size_t)n >= sizeof(address.sun_path)) {
		/* longer than sun_path: reach it through a descriptor */
		dir_fd = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
		if (dir_fd < 0)
			return -errno;
		snprintf(address.sun_path, sizeof(address.sun_path), "/proc/self/fd/%d/" SLUICE_SOCKET_FILE, dir_fd);
	}
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		n = -errno;
	else
		n = 0;
	while (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0) {
		n = -errno;
		if ((n == -EINTR || n == -EAGAIN) && now_ms() < deadline_ms) {
			poll(NULL, 0, 2);
			n = 0;
			continue;
		}
		close(fd);
		fd = -1;
	}
	if (dir_fd >= 0)
		close(dir_fd);
	return fd >= 0 ? fd : n;
}

static int exchange(int fd, const struct sluice_register_request *request, uint64_t deadline_ms,
                    struct sluice_register_reply *ret_reply)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	ssize_t n;

	do
		n = send(fd, request, sizeof(*request), MSG_NOSIGNAL);
	while (n < 0 && errno == EINTR);
	if (n < 0 && errno == EPIPE)
		return -ECONNRESET;
	if (n != (ssize_t)sizeof(*request))
		return -ETIMEDOUT;
	for (;;) {
		uint64_t now = now_ms();

		n = recv(fd, ret_reply, sizeof(*ret_reply), MSG_DONTWAIT);
		if (n == (ssize_t)sizeof(*ret_reply))
			return 0;
		if (n >= 0)
			return n == 0 ? -ECONNRESET : -EPROTO;
		if (errno != EAGAIN && errno != EINTR)
			return -errno;
		if (now >= deadline_ms)
			return -ETIMEDOUT;
		poll(&p, 1, (int)(deadline_ms - now));
	}
}

/* A daemon that hangs up without an answer is alive but overloaded: try again while there is time. */
static int ask_until_answered(const char *dir, const struct sluice_register_request *request,
                              struct sluice_register_reply *ret_reply)
{
	uint64_t deadline_ms = now_ms() + SLUICE_REGISTER_DEADLINE_MS;
	int pause_ms = FIRST_PAUSE_MS, error;

	for (;;) {
		int fd = connect_daemon(dir, deadline_ms);

		if (fd < 0)
			return fd;
		error = exchange(fd, request, deadline_ms, ret_reply);
		if (!error)
			return fd;
		close(fd);
		if (error != -ECONNRESET || now_ms() + (uint64_t)pause_ms >= deadline_ms)
			return error;
		poll(NULL, 0, pause_ms);
		pause_ms *= 2;
	}
}

/* Returns 0 with a slot; -EAGAIN: no daemon answered; any other errno: the daemon refused. */
static int ask_daemon(const struct attach_identity *identity, uint64_t hook_mask, struct attach_slot *ret_slot)
{
	struct sluice_register_request request = {
		.magic = SLUICE_REGISTER_MAGIC,
		.version = SLUICE_REGISTER_VERSION,
		.region_major = SLUICE_REGION_MAJOR,
		.ns_pid = identity->ns_pid,
		.hook_mask = hook_mask,
	};
	struct sluice_register_reply reply;
	const char *dir = settings_grant_dir();
	int error = 0, fd = dir ? ask_until_answered(dir, &request, &reply) : -ENOENT;

	if (fd < 0)
		return -EAGAIN;
	if (reply.magic != SLUICE_REGISTER_MAGIC || reply.version != SLUICE_REGISTER_VERSION)
		error = -EPROTO;
	else if (reply.error)
		error = -(int)reply.error;
	else if (reply.slot >= SLUICE_MAX_SLOTS || !(reply.generation & 1))
		error = -EPROTO;
	if (error) {
		close(fd);
		return error;
	}
	keep_socket(fd);
	*ret_slot = (struct attach_slot){ reply.slot, reply.generation };
	return 0;
}

int attach_register(const struct attach_region *region, const struct attach_identity *identity, uint64_t hook_mask,
                    struct attach_slot *ret_slot)
{
	struct attach_slot got = { 0 };
	int error;

	drop_kept_socket(); /* a forked child must not hold its parent's socket open */
	error = ask_daemon(identity, hook_mask, &got);
	if (error == -EAGAIN) {
		error = sluice_slot_inherit(region->policy, region->usage, identity->ns_pid, identity->process,
		                            identity->image, &got.slot);
		if (error)
			error = sluice_slot_claim(region->policy, region->usage, identity->ns_pid, identity->starttime,
			                          &got.slot);
		if (!error)
			got.generation = __atomic_load_n(&region->policy->dir[got.slot].generation, __ATOMIC_ACQUIRE) &
			                 ~UINT64_C(1);
	}
	if (error)
		return error;
	sluice_slot_forget_before(region->usage, identity->process, identity->image, got.slot);
	*ret_slot = got;
	return 0;
}

/* Files of a grant belong to the user that made it. A program that changes its user after `sluice run` (setpriv, gosu,
 * su) loses them. */
static const char *denied(void)
{
	static char text[160]; /* racing threads write the same */
	const char *dir = settings_grant_dir();
	char path[PATH_MAX];
	struct stat st;

	if (!dir || snprintf(path, sizeof(path), "%s/" SLUICE_USAGE_FILE, dir) >= (int)sizeof(path) ||
	    old_stat(path, &st) != 0 || st.st_uid == geteuid())
		return "the grant's region is not readable";
	snprintf(text, sizeof(text),
	         "the grant belongs to user %u and this process runs as user %u; start `sluice run` as that user",
	         (unsigned int)st.st_uid, (unsigned int)geteuid());
	return text;
}

const char *attach_strerror(int error)
{
	switch (-error) {
	case ENOENT:
		return "this process has no grant (no " SLUICE_POLICY_FILE " found); start it with `sluice run`";
	case EACCES:
		return denied();
	case EAGAIN:
		return "the grant's region is not published yet";
	case EPROTO:
		return "the daemon speaks another major version of the region";
	case ESTALE:
		return "the grant is over, or its region was made before the last boot";
	case EBADMSG:
		return "the grant's region is corrupt";
	case ENOSPC:
		return "the grant has no free process slot (limit 256)";
	case EBUSY:
		return "the grant's memory is on the host for now; `sluice resume` brings it back";
	case EPERM:
		return "the daemon reports that this process does not belong to the grant";
	default:
		return strerror(-error);
	}
}

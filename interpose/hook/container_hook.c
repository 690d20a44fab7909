/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sluice-container-hook: an OCI createContainer hook that puts our library first in the image's own /etc/ld.so.preload.
 *
 *   sluice-container-hook preload /run/sluice/lib/libsluice.so  < state
 *
 * And a createRuntime hook that reports to the daemon, in the host's namespaces, that the container's cgroup exists:
 * the daemon sets the driver's memory limit on exactly that cgroup, before any program of the image runs.
 *
 *   sluice-container-hook wall /run/sluice/hook.sock GRANT required|optional  < state
 *
 * It runs as root, in the container's mount namespace before the runtime changes its root, over a file system that the
 * author of the image controls. So: it is statically linked (runtimes have passed the container's LD_PRELOAD to hooks),
 * every path of the container is resolved inside of its root, no file of the image is executed or written, and every
 * failure stops the start of the container with an error message. The merged file lies on a tmpfs of its own, mounted
 * read-only over the image's file, whatever the image's file contains: an image is not trusted to state that our line
 * is there already. Longer than 500 lines because it stands alone: a static program that shares no code. Source: OCI
 * runtime specification 1.2, config.md "Hooks" and runtime.md "State".
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "interpose/hook/json.h"

#define NAME "sluice-container-hook"
#define STATE_MAX (1 << 20)
#define CONFIG_MAX (16 << 20)
#define PRELOAD_MAX (64 << 10)
#define DEADLINE_S 10      /* it takes 1 ms; a runtime holds its container's lock while it waits for a hook */
#define WALL_DEADLINE_S 30 /* the daemon may have to wait for a driver that hangs: 10 s twice */
#define TMPFS_OPTIONS "size=128k,nr_inodes=4,mode=0755"
#define QUIET (MS_NOSUID | MS_NODEV | MS_NOEXEC)

#ifndef FUSE_SUPER_MAGIC /* in <linux/magic.h> since Linux 5.16 */
#define FUSE_SUPER_MAGIC 0x65735546
#endif

#define FILE_IN_ROOT "etc/ld.so.preload"

__attribute__((noreturn, format(printf, 1, 2))) static void fail(const char *format, ...)
{
	va_list arguments;

	fputs(NAME ": ", stderr);
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fputc('\n', stderr);
	exit(1);
}

/* --- the deadline ----------------------------------------------------------------------------------------------- */

static void too_late(int number)
{
	static const char said[] = NAME ": timed out: a file system or process of the image does not answer\n";

	(void)number;
	(void)!write(STDERR_FILENO, said, sizeof(said) - 1);
	_exit(1);
}

/*
 * Writes an error message first. Where the process cannot write it, as in a wait that only a fatal signal ends (a FUSE
 * server that has taken the request), SIGKILL follows a second later.
 */
static void set_deadline(unsigned seconds)
{
	struct sigaction action = { .sa_handler = too_late };
	struct sigevent last = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGKILL };
	struct itimerspec when = { .it_value.tv_sec = seconds + 1 };
	sigset_t ours;
	int timer; /* the kernel's call; timer_create() of an old glibc is in a separate library */

	sigemptyset(&ours);
	sigaddset(&ours, SIGALRM);
	if (sigaction(SIGALRM, &action, NULL) != 0 || sigprocmask(SIG_UNBLOCK, &ours, NULL) != 0 ||
	    syscall(SYS_timer_create, CLOCK_MONOTONIC, &last, &timer) != 0 ||
	    syscall(SYS_timer_settime, timer, 0, &when, NULL) != 0)
		fail("cannot set the deadline: %s", strerror(errno));
	alarm(seconds);
}

/* A string of at most `most` bytes; a NUL inside ends the text read from it. */
static char *read_all(int fd, size_t most, const char *what)
{
	char *data = malloc(most + 2); /* pages are taken as they are used */
	size_t have = 0;

	if (!data)
		fail("no memory for %s", what);
	for (;;) {
		ssize_t n = read(fd, data + have, most + 1 - have);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			fail("cannot read %s: %s", what, strerror(errno));
		if (n == 0)
			break;
		have += (size_t)n;
		if (have > most)
			fail("%s is larger than %zu bytes", what, most);
	}
	data[have] = '\0';
	return data;
}

/* --- paths of the container ------------------------------------------------------------------------------------- */

/* Before Linux 5.6: no symlink at all may be on the path. */
static int walk(int root, const char *path, int flags)
{
	int at = dup(root);

	for (;;) {
		size_t length = strcspn(path, "/");
		char part[256];
		bool last = path[length] == '\0';

		if (at < 0)
			return -1;
		if (length == 0 || length >= sizeof(part)) {
			close(at);
			errno = EINVAL;
			return -1;
		}
		memcpy(part, path, length);
		part[length] = '\0';
		int next = openat(at, part, (last ? flags : O_PATH | O_DIRECTORY) | O_NOFOLLOW | O_CLOEXEC);
		int why = errno;

		close(at);
		errno = why;
		if (last)
			return next;
		at = next;
		path += length + 1;
	}
}

/* Resolves as a program in the container would; links lead nowhere else. */
static int open_in(int root, const char *path, int flags)
{
	struct open_how how = {
		.flags = (uint64_t)(flags | O_CLOEXEC),
		.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS,
	};
	long fd = syscall(SYS_openat2, root, path, &how, sizeof(how));

	if (fd < 0 && errno == ENOSYS)
		return walk(root, path, flags);
	return (int)fd;
}

static const char *fd_path(int fd, char buffer[32])
{
	snprintf(buffer, 32, "/proc/self/fd/%d", fd);
	return buffer;
}

/* The kernel's number of the mount that a file was opened through. */
static long mount_of(int fd)
{
	char path[48];
	char text[512];
	ssize_t have;

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
	int info = open(path, O_RDONLY | O_CLOEXEC);

	if (info < 0)
		fail("cannot open %s: %s", path, strerror(errno));
	have = read(info, text, sizeof(text) - 1);
	close(info);
	if (have <= 0)
		fail("cannot read %s", path);
	text[have] = '\0';
	const char *found = strstr(text, "mnt_id:");

	if (!found)
		fail("%s has no mnt_id", path);
	return strtol(found + strlen("mnt_id:"), NULL, 10);
}

/*
 * A link of the image may lead to a file whose read has effects, never ends or shows data of the host: the kernel's own
 * file systems, and FUSE, whose server controls the contents. A root that is FUSE itself (fuse-overlayfs) belongs to
 * the runtime.
 */
static void check_file_system(int root, int fd)
{
	static const long kernels[] = {
		PROC_SUPER_MAGIC,   SYSFS_MAGIC,         DEBUGFS_MAGIC,  TRACEFS_MAGIC,      SECURITYFS_MAGIC,
		CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC, BPF_FS_MAGIC,   SELINUX_MAGIC,      SMACK_MAGIC,
		EFIVARFS_MAGIC,     PSTOREFS_MAGIC,      BINFMTFS_MAGIC, DEVPTS_SUPER_MAGIC, NSFS_MAGIC,
	};
	struct statfs file;
	struct statfs around;
	struct stat inner;
	struct stat outer;

	if (fstatfs(fd, &file) != 0 || fstatfs(root, &around) != 0)
		fail("cannot determine the file system of /etc/ld.so.preload of the image: %s", strerror(errno));
	for (size_t i = 0; i < sizeof(kernels) / sizeof(kernels[0]); i++)
		if (file.f_type == kernels[i])
			fail("/etc/ld.so.preload of the image leads to a file of the kernel");
	if (file.f_type == FUSE_SUPER_MAGIC && (around.f_type != FUSE_SUPER_MAGIC || fstat(fd, &inner) != 0 ||
	                                        fstat(root, &outer) != 0 || inner.st_dev != outer.st_dev))
		fail("/etc/ld.so.preload of the image leads to a FUSE file system");
}

/* The image's file, or an empty new one as a mount point, as runtimes make for every mount. */
static int open_target(int root)
{
	int fd = open_in(root, FILE_IN_ROOT, O_PATH);
	struct stat seen;

	if (fd < 0 && errno == ENOENT) {
		if (mkdirat(root, "etc", 0755) != 0 && errno != EEXIST)
			fail("cannot make /etc in the container: %s", strerror(errno));
		int etc = open_in(root, "etc", O_PATH | O_DIRECTORY);

		if (etc < 0)
			fail("cannot open /etc of the container: %s", strerror(errno));
		fd = openat(etc, "ld.so.preload", O_CREAT | O_EXCL | O_WRONLY | O_NOFOLLOW | O_CLOEXEC, 0644);
		if (fd < 0)
			fail("cannot make /etc/ld.so.preload in the container: %s", strerror(errno));
		close(etc);
		close(fd);
		fd = open_in(root, FILE_IN_ROOT, O_PATH);
	}
	if (fd < 0)
		fail("cannot open /etc/ld.so.preload of the container: %s", strerror(errno));
	check_file_system(root, fd);
	if (fstat(fd, &seen) != 0 || !S_ISREG(seen.st_mode))
		fail("/etc/ld.so.preload of the image is not a file");
	return fd;
}

/* --- the merged file -------------------------------------------------------------------------------------------- */

/*
 * The names in the image's own file, one per line and without ours, in place: the result is never longer, except for
 * the newline after the last name, for which read_all() has left room. Same rules as glibc's loader (elf/rtld.c,
 * do_preload()): a '#' anywhere, also in the middle of a word, comments out the rest of its line; spaces, tabs, colons
 * and newlines end names; NUL ends the file.
 */
static void normalize(char *list, const char *ours)
{
	const char *ends = " \t\n:";
	const char *end = list + strlen(list);
	const char *from = list;
	char *to = list;

	for (char *at = strchr(list, '#'); at; at = strchr(at, '#')) {
		size_t length = strcspn(at, "\n");

		memset(at, ' ', length);
		at += length;
	}
	while (from < end) { /* does not read beyond `to`: the last newline replaces the NUL */
		size_t length = strcspn(from, ends);

		if (length > 0 && (length != strlen(ours) || memcmp(from, ours, length) != 0)) {
			memmove(to, from, length);
			to += length;
			*to++ = '\n';
		}
		from += length + 1;
	}
	*to = '\0';
}

static void write_file(int directory, const char *library, const char *rest)
{
	int fd = openat(directory, "list", O_CREAT | O_EXCL | O_WRONLY | O_NOFOLLOW | O_CLOEXEC, 0644);

	if (fd < 0 || fchmod(fd, 0644) != 0 || dprintf(fd, "%s\n%s", library, rest) < 0 || close(fd) != 0)
		fail("cannot write the merged ld.so.preload: %s", strerror(errno));
}

/* Lies in a directory that the runtime has just made for our library's mount, and that is visible again after the
 * detach. */
static void cover(int root, int target, const char *library, const char *rest, const char *label)
{
	char directory[256];
	char options[512];
	char path[32];
	char other[32];
	const char *slash = strrchr(library, '/');

	if (slash == library || (size_t)(slash - library) >= sizeof(directory))
		fail("%s: not a usable path", library);
	memcpy(directory, library + 1, (size_t)(slash - library - 1));
	directory[slash - library - 1] = '\0';
	if (label[0] && !strchr(label, '"'))
		snprintf(options, sizeof(options), TMPFS_OPTIONS ",context=\"%.400s\"", label);
	else
		snprintf(options, sizeof(options), TMPFS_OPTIONS);

	int below = open_in(root, directory, O_PATH | O_DIRECTORY);

	if (below < 0)
		fail("cannot open /%s of the container: %s", directory, strerror(errno));
	if (mount("tmpfs", fd_path(below, path), "tmpfs", QUIET, options) != 0)
		fail("cannot mount a tmpfs: %s", strerror(errno));
	int made = open_in(root, directory, O_PATH | O_DIRECTORY);

	if (made < 0)
		fail("cannot open the new tmpfs: %s", strerror(errno));
	write_file(made, library, rest);
	int file = openat(made, "list", O_PATH | O_NOFOLLOW | O_CLOEXEC);

	if (file < 0 || mount(fd_path(file, path), fd_path(target, other), NULL, MS_BIND, NULL) != 0)
		fail("cannot mount over /etc/ld.so.preload: %s", strerror(errno));
	int covered = open_in(root, FILE_IN_ROOT, O_PATH);

	if (covered < 0 ||
	    mount(NULL, fd_path(covered, path), NULL, MS_BIND | MS_REMOUNT | MS_RDONLY | QUIET, NULL) != 0)
		fail("cannot make /etc/ld.so.preload read-only: %s", strerror(errno));
	if (umount2(fd_path(made, path), MNT_DETACH) != 0)
		fail("cannot detach the tmpfs: %s", strerror(errno));
}

/*
 * The image's own names. A file of another mount is not read: we are root here, and what is read becomes readable for
 * the container's user, who may be forbidden to read that file of a volume.
 */
static char *read_list(int root, int target)
{
	char path[32];

	if (mount_of(target) != mount_of(root)) {
		char *none = calloc(1, 2);

		if (!none)
			fail("no memory");
		return none;
	}
	int image = open(fd_path(target, path), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);

	if (image < 0)
		fail("cannot read /etc/ld.so.preload of the image: %s", strerror(errno));
	char *list = read_all(image, PRELOAD_MAX, "/etc/ld.so.preload of the image");

	close(image);
	return list;
}

static void preload(int root, const char *library, const char *label)
{
	int target = open_target(root);
	char *list = read_list(root, target);

	normalize(list, library);
	cover(root, target, library, list, label);
	free(list);
}

/* --- the runtime's description of the container ----------------------------------------------------------------- */

static char *text_at(const char *json, const char *key, const char *what)
{
	char *text = json_text(json_member(json, key));

	if (!text || !text[0])
		fail("%s has no \"%s\"", what, key);
	return text;
}

static int open_root(const char *bundle, const char *config)
{
	char *path = text_at(json_member(config, "root"), "path", "root of config.json");
	int base = open(bundle, O_PATH | O_DIRECTORY | O_CLOEXEC);
	int root = base < 0 ? -1
	                    : openat(base, path, O_PATH | O_DIRECTORY | O_CLOEXEC); /* an absolute path needs no base */

	if (root < 0)
		fail("cannot open the container's root %s: %s", path, strerror(errno));
	close(base);
	free(path);
	return root;
}

static char *read_config(const char *bundle)
{
	int base = open(bundle, O_PATH | O_DIRECTORY | O_CLOEXEC);
	int fd = base < 0 ? -1 : openat(base, "config.json", O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		fail("cannot open config.json in %s: %s", bundle, strerror(errno));
	char *config = read_all(fd, CONFIG_MAX, "config.json");

	close(fd);
	close(base);
	return config;
}

/* --- the driver's memory limit ------------------------------------------------------------------------------------ */

/* Receives the daemon's answer, or the reason why there is none. */
static const char *ask_daemon(const char *path, const char *question, char *answer, size_t room)
{
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	struct timeval to_be_heard = { .tv_sec = 5 };
	struct timeval to_hear = { .tv_sec = WALL_DEADLINE_S - 8 }; /* both timeouts together end before the deadline */
	size_t length = strlen(path);
	size_t have = 0;
	int fd;

	if (length >= sizeof(at.sun_path))
		return "the path of the daemon's socket is too long";
	memcpy(at.sun_path, path, length + 1);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &to_hear, sizeof(to_hear)) != 0 ||
	    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &to_be_heard, sizeof(to_be_heard)) != 0 ||
	    connect(fd, (struct sockaddr *)&at, sizeof(at)) != 0 ||
	    send(fd, question, strlen(question), MSG_NOSIGNAL) != (ssize_t)strlen(question)) {
		const char *why = strerror(errno);

		if (fd >= 0)
			close(fd);
		return why;
	}
	while (have < room - 1) {
		ssize_t n = recv(fd, answer + have, room - 1 - have, 0);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			break;
		have += (size_t)n;
	}
	close(fd);
	answer[have] = '\0';
	answer[strcspn(answer, "\n")] = '\0';
	if (strcmp(answer, "ok") == 0)
		return NULL;
	return strncmp(answer, "no ", 3) == 0 ? answer + 3 : "no answer from the daemon";
}

/* The pid of the container's first process, from the runtime. */
static long pid_in(const char *state)
{
	const char *value = json_member(state, "pid");
	char *end = NULL;
	long pid = value ? strtol(value, &end, 10) : 0;

	if (pid <= 0 || end == value)
		fail("the container's state has no \"pid\"");
	return pid;
}

/* Where the limit is optional the container starts without it, and the daemon reports that as soon as it can. */
static void wall(const char *state, const char *socket_path, const char *grant, bool required)
{
	char question[160];
	char answer[512];
	int length = snprintf(question, sizeof(question), "wall %s %ld\n", grant, pid_in(state));

	if (length < 0 || (size_t)length >= sizeof(question))
		fail("%s: not a grant", grant);
	const char *why = ask_daemon(socket_path, question, answer, sizeof(answer));

	if (why && required)
		fail("the driver's wall could not be built around this container: %s", why);
	if (why)
		fprintf(stderr, NAME ": without the driver's wall: %s\n", why);
}

static bool is_wall(int argc, char **argv)
{
	return argc == 5 && strcmp(argv[1], "wall") == 0 && argv[2][0] == '/' &&
	       (strcmp(argv[4], "required") == 0 || strcmp(argv[4], "optional") == 0);
}

int main(int argc, char **argv)
{
	if (!is_wall(argc, argv) && (argc != 3 || strcmp(argv[1], "preload") != 0 || argv[2][0] != '/')) {
		fputs("usage: " NAME " preload /PATH/OF/LIBRARY, or " NAME " wall /PATH/OF/SOCKET GRANT"
		      " required|optional  (the state of an OCI container on standard input)\n",
		      stderr);
		return 2;
	}
	set_deadline(argc == 5 ? WALL_DEADLINE_S : DEADLINE_S);
	char *state = read_all(STDIN_FILENO, STATE_MAX, "the container's state");

	if (argc == 5) {
		wall(state, argv[2], argv[3], argv[4][0] == 'r');
		free(state);
		return 0;
	}
	char *bundle = text_at(state, "bundle", "the container's state");
	char *config = read_config(bundle);
	char *label = json_text(json_member(json_member(config, "linux"), "mountLabel"));
	int root = open_root(bundle, config);

	preload(root, argv[2], label ? label : "");
	close(root);
	free(label);
	free(config);
	free(bundle);
	free(state);
	return 0;
}

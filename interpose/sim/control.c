/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Knobs: parsing, storing, and the control file.
 */
#define _GNU_SOURCE
#include "interpose/sim/control.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "interpose/sim/node.h"

#define CHECK_NS 1000000u

/* The knobs that are one number: stored = given × unit. */
static const struct number_knob {
	const char *key;
	size_t offset;
	uint64_t unit;
	uint64_t initial; /* as given, before the unit */
} numbers[] = {
	{ "slice_us", offsetof(struct sim_knobs, slice_ns), 1000, 2000 },
	{ "call_ns", offsetof(struct sim_knobs, call_ns), 1, 0 },
	{ "context_mib", offsetof(struct sim_knobs, context_bytes), 1 << 20, 0 },
	{ "driver_version", offsetof(struct sim_knobs, driver_version), 1, 13000 },
	{ "version_skew", offsetof(struct sim_knobs, version_skew), 1, 0 },
	{ "nvml_hang", offsetof(struct sim_knobs, nvml_hang), 1, 0 },
};

#define NUMBERS (sizeof(numbers) / sizeof(numbers[0]))

static uint64_t *number_at(struct sim_knobs *knobs, const struct number_knob *n)
{
	return (uint64_t *)((char *)knobs + n->offset);
}

static void arm(struct sim_knobs *k)
{
	bool armed = k->call_ns || k->version_skew;

	for (unsigned i = 0; i < SIM_DEVICES; i++)
		armed |= k->lost[i] || k->hang_kernels[i];
	for (unsigned i = 0; i < SIM_FAULTS; i++)
		armed |= k->fault[i].armed;
	__atomic_store_n(&k->armed, armed, __ATOMIC_RELEASE);
}

static bool parse_number(const char *text, uint64_t *ret_value, const char **ret_end)
{
	char *end;

	errno = 0;
	*ret_value = strtoull(text, &end, 0);
	*ret_end = end;
	return end != text && errno == 0;
}

/* "function:nth[:result]" */
static int set_fault(struct sim_knobs *k, const char *value)
{
	const char *colon = strchr(value, ':'), *end;
	uint64_t nth, result = 999;
	size_t length = colon ? (size_t)(colon - value) : 0;

	if (length == 0 || length >= SIM_FAULT_NAME || !parse_number(colon + 1, &nth, &end) || nth == 0)
		return -EINVAL;
	if (*end == ':' && !parse_number(end + 1, &result, &end))
		return -EINVAL;
	if (*end)
		return -EINVAL;
	for (unsigned i = 0; i < SIM_FAULTS; i++) {
		struct sim_fault *f = &k->fault[i];

		if (f->armed)
			continue;
		memset(f->function, 0, sizeof(f->function));
		memcpy(f->function, value, length);
		f->result = (uint32_t)result;
		f->countdown = nth;
		/* C1: pairs with the acquire load in sim_control_fault() */
		__atomic_store_n(&f->armed, 1, __ATOMIC_RELEASE);
		return 0;
	}
	return -ENOSPC;
}

/* "device" or "device:number" */
static int set_per_device(uint64_t *words, const char *value)
{
	const char *end;
	uint64_t device, number = 1;

	if (!parse_number(value, &device, &end) || device >= SIM_DEVICES)
		return -EINVAL;
	if (*end == ':' && !parse_number(end + 1, &number, &end))
		return -EINVAL;
	if (*end)
		return -EINVAL;
	__atomic_store_n(&words[device], number, __ATOMIC_RELAXED);
	return 0;
}

static int set(struct sim_knobs *k, const char *key, const char *value)
{
	const char *end;
	uint64_t number, device = 0;

	for (size_t i = 0; i < NUMBERS; i++) {
		if (strcmp(key, numbers[i].key) != 0)
			continue;
		if (!parse_number(value, &number, &end) || *end)
			return -EINVAL;
		if (k->slice_ns && numbers[i].offset == offsetof(struct sim_knobs, slice_ns) && number == 0)
			return -EINVAL;
		__atomic_store_n(number_at(k, &numbers[i]), number * numbers[i].unit, __ATOMIC_RELAXED);
		return 0;
	}
	if (strcmp(key, "gpu_lost") == 0)
		return set_per_device(k->lost, value);
	if (strcmp(key, "hang_kernel") == 0)
		return set_per_device(k->hang_kernels, value);
	if (strcmp(key, "fail") == 0)
		return set_fault(k, value);
	if (strcmp(key, "xid") == 0 && sim_node) {
		if (!parse_number(value, &number, &end))
			return -EINVAL;
		if (*end == '@' && !parse_number(end + 1, &device, &end))
			return -EINVAL;
		if (*end || device >= sim_node->devices)
			return -EINVAL;
		sim_control_xid((unsigned)device, (unsigned)number);
		return 0;
	}
	return -EINVAL;
}

void sim_control_defaults(struct sim_knobs *knobs)
{
	static const char *const others[] = { "gpu_lost", "hang_kernel", "fail" };
	char name[64];

	for (size_t i = 0; i < NUMBERS; i++)
		*number_at(knobs, &numbers[i]) = numbers[i].initial * numbers[i].unit;
	for (size_t i = 0; i < NUMBERS + sizeof(others) / sizeof(others[0]); i++) {
		const char *key = i < NUMBERS ? numbers[i].key : others[i - NUMBERS], *value;

		snprintf(name, sizeof(name), "SLUICE_SIM_%s", key);
		for (char *c = name; *c; c++)
			*c = (char)toupper((unsigned char)*c);
		value = getenv(name);
		if (value && *value)
			set(knobs, key, value);
	}
	arm(knobs);
}

int sim_control_set(const char *key, const char *value)
{
	int error = set(&sim_node->knobs, key, value);

	arm(&sim_node->knobs);
	return error;
}

static void read_file(int fd)
{
	char text[4096], *save = NULL;
	ssize_t n = read(fd, text, sizeof(text) - 1);

	if (n < 0)
		return;
	text[n] = '\0';
	for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		char *equals = strchr(line, '=');

		if (*line == '#' || !equals)
			continue;
		*equals = '\0';
		sim_control_set(line, equals + 1);
	}
}

void sim_control_poll(uint64_t now_ns)
{
	struct sim_knobs *k = &sim_node->knobs;
	uint64_t checked_ns = __atomic_load_n(&k->file_checked_ns, __ATOMIC_RELAXED), seen, stamp;
	struct stat st;
	char path[4096];
	int fd;

	if (now_ns && now_ns < checked_ns + CHECK_NS)
		return;
	if (now_ns)
		__atomic_store_n(&k->file_checked_ns, now_ns, __ATOMIC_RELAXED);
	if (!sim_node_path(path, sizeof(path), "control"))
		return;
	if (stat(path, &st) != 0)
		return;
	/* Inode and size too: two changes may fall into one tick of the file system's clock. */
	stamp = (uint64_t)st.st_mtim.tv_sec * 1000000000u + (uint64_t)st.st_mtim.tv_nsec;
	stamp ^= (uint64_t)st.st_ino << 40 ^ (uint64_t)st.st_size << 20;
	seen = __atomic_load_n(&k->file_mtime_ns, __ATOMIC_RELAXED);
	if (seen == stamp ||
	    !__atomic_compare_exchange_n(&k->file_mtime_ns, &seen, stamp, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
		return;
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return;
	read_file(fd);
	close(fd);
}

bool sim_control_fault(const char *function, uint32_t *ret_result)
{
	struct sim_knobs *k = &sim_node->knobs;

	for (unsigned i = 0; i < SIM_FAULTS; i++) {
		struct sim_fault *f = &k->fault[i];

		/* C1: pairs with the release store in set_fault() */
		if (!__atomic_load_n(&f->armed, __ATOMIC_ACQUIRE) || strcmp(f->function, function) != 0)
			continue;
		if (__atomic_fetch_sub(&f->countdown, 1, __ATOMIC_RELAXED) != 1)
			continue;
		*ret_result = f->result;
		__atomic_store_n(&f->armed, 0, __ATOMIC_RELEASE);
		arm(k);
		return true;
	}
	return false;
}

int sim_control_print(char *text, unsigned long bytes)
{
	struct sim_knobs *k = &sim_node->knobs;
	unsigned long n = 0;

#define PRINT(...)                                                                                                     \
	n += (unsigned long)snprintf(n < bytes ? text + n : NULL, n < bytes ? bytes - n : 0, __VA_ARGS__)
	for (size_t i = 0; i < NUMBERS; i++)
		PRINT("%s=%llu\n", numbers[i].key, (unsigned long long)(*number_at(k, &numbers[i]) / numbers[i].unit));
	for (unsigned i = 0; i < sim_node->devices; i++) {
		if (k->lost[i])
			PRINT("gpu_lost=%u\n", i);
		if (k->hang_kernels[i])
			PRINT("hang_kernel=%u:%llu\n", i, (unsigned long long)k->hang_kernels[i]);
	}
	for (unsigned i = 0; i < SIM_FAULTS; i++)
		if (k->fault[i].armed)
			PRINT("fail=%s:%llu:%u\n", k->fault[i].function, (unsigned long long)k->fault[i].countdown,
			      k->fault[i].result);
#undef PRINT
	return (int)n;
}

void sim_control_xid(unsigned device, unsigned xid)
{
	uint64_t seq = __atomic_fetch_add(&sim_node->events, 1, __ATOMIC_RELAXED);
	struct sim_xid *x = &sim_node->xid[seq % SIM_XIDS];

	__atomic_store_n(&x->seq, 0, __ATOMIC_RELAXED);
	x->at_ns = sim_now_ns();
	x->device = device;
	x->xid = xid;
	/* C2: pairs with the acquire load in the NVML event wait */
	__atomic_store_n(&x->seq, seq + 1, __ATOMIC_RELEASE);
}

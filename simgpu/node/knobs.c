/* SPDX-License-Identifier: Apache-2.0 */
/* Faults on demand. The control file is read again at most every 20 ms. */
#include "simgpu/node/place.h"

#include <ctype.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LOOK_EVERY_NS UINT64_C(20000000)
#define VALUE_BYTES 128

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static char control[4096]; /* the file's text */
static uint64_t looked_ns;
static struct timespec seen;

/* With the mutex held. */
static void look(void)
{
	char path[256];
	struct stat info;
	uint64_t now_ns = sim_now_ns();

	if (looked_ns && now_ns - looked_ns < LOOK_EVERY_NS)
		return;
	looked_ns = now_ns;
	snprintf(path, sizeof(path), "%s/control", sim_directory());
	if (stat(path, &info)) {
		control[0] = 0;
		seen = (struct timespec){ 0 };
		return;
	}
	if (info.st_mtim.tv_sec == seen.tv_sec && info.st_mtim.tv_nsec == seen.tv_nsec)
		return;
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return;
	ssize_t n = read(fd, control, sizeof(control) - 1);

	close(fd);
	control[n > 0 ? n : 0] = 0;
	seen = info.st_mtim;
}

static bool from_file(const char *name, char *ret_text, unsigned bytes)
{
	size_t length = strlen(name);
	bool found = false;

	pthread_mutex_lock(&mutex);
	look();
	for (const char *line = control; *line && !found;) {
		size_t n = strcspn(line, "\n");

		if (n > length && strncmp(line, name, length) == 0 && line[length] == '=') {
			snprintf(ret_text, bytes, "%.*s", (int)(n - length - 1), line + length + 1);
			found = true;
		}
		line += n + (line[n] == '\n');
	}
	pthread_mutex_unlock(&mutex);
	return found;
}

bool sim_knob_text(const char *name, char *ret_text, unsigned bytes)
{
	char variable[64];
	size_t at = (size_t)snprintf(variable, sizeof(variable), "SLUICE_SIM_");

	if (from_file(name, ret_text, bytes))
		return true;
	for (; *name && at < sizeof(variable) - 1; name++)
		variable[at++] = (char)toupper((unsigned char)*name);
	variable[at] = 0;
	const char *value = getenv(variable);

	if (!value || !value[0])
		return false;
	snprintf(ret_text, bytes, "%s", value);
	return true;
}

uint64_t sim_knob_number(const char *name, uint64_t otherwise)
{
	char value[VALUE_BYTES];

	return sim_knob_text(name, value, sizeof(value)) ? strtoull(value, NULL, 0) : otherwise;
}

bool sim_knob_lists(const char *name, unsigned index)
{
	char value[VALUE_BYTES], *at = value;

	if (!from_file(name, value, sizeof(value)))
		return false;
	while (*at) {
		char *end;
		unsigned long number = strtoul(at, &end, 0);

		if (end == at)
			return false;
		if (number == index)
			return true;
		at = *end == ',' ? end + 1 : end;
	}
	return false;
}

/* --- applied to every driver call --------------------------------------------------------------------------------- */

static struct {
	uint64_t read_ns;
	bool any;
	uint64_t latency_ns;
	char hangs[64]; /* the function that blocks while this is set; "" = none */
	char function[64];
	uint64_t nth; /* 0 = every call */
	CUresult result;
	uint64_t calls;
} faults;

/* fail=cuMemAlloc_v2:3:2 - the 3rd call from now on returns error 2; 0 in place of 3 means every call. */
static void read_faults(void)
{
	static char last[VALUE_BYTES];
	char value[VALUE_BYTES] = "", *rest;

	faults.latency_ns = sim_knob_number("call_latency_ns", 0);
	faults.hangs[0] = 0;
	sim_knob_text("hang", faults.hangs, sizeof(faults.hangs));
	sim_knob_text("fail", value, sizeof(value));
	if (strcmp(value, last) != 0) {
		memcpy(last, value, sizeof(last));
		faults.calls = 0;
		faults.function[0] = 0;
		size_t n = strcspn(value, ":");

		if (value[n] == ':' && n < sizeof(faults.function)) {
			faults.nth = strtoull(value + n + 1, &rest, 0);
			faults.result = *rest == ':' ? (CUresult)strtoul(rest + 1, NULL, 0) : CUDA_ERROR_UNKNOWN;
			memcpy(faults.function, value, n);
			faults.function[n] = 0;
		}
	}
	faults.any = faults.latency_ns || faults.function[0] || faults.hangs[0];
}

static void hang(const char *function)
{
	char value[VALUE_BYTES];
	struct timespec nap = { .tv_nsec = LOOK_EVERY_NS };

	while (sim_knob_text("hang", value, sizeof(value)) && strcmp(value, function) == 0)
		nanosleep(&nap, NULL);
}

CUresult sim_enter_call(const char *function)
{
	static uint32_t tick;

	/* The control file may appear at any time, so the clock is read now and then; a launch must stay cheap. */
	if (!faults.read_ns || faults.any || (++tick & 255) == 0 || function[2] == 'I' /* cuInit */) {
		uint64_t now_ns = sim_now_ns();

		static uint32_t reading;

		if (now_ns - faults.read_ns > LOOK_EVERY_NS && !__atomic_exchange_n(&reading, 1, __ATOMIC_ACQUIRE)) {
			faults.read_ns = now_ns;
			read_faults();
			__atomic_store_n(&reading, 0, __ATOMIC_RELEASE);
		}
	}
	if (__builtin_expect(!faults.any, 1))
		return CUDA_SUCCESS;
	if (faults.latency_ns) {
		uint64_t end_ns = sim_now_ns() + faults.latency_ns;

		while (sim_now_ns() < end_ns)
			;
	}
	if (faults.hangs[0] && strcmp(faults.hangs, function) == 0)
		hang(function);
	if (faults.function[0] && strcmp(faults.function, function) == 0) {
		uint64_t call = __atomic_add_fetch(&faults.calls, 1, __ATOMIC_RELAXED);

		if (faults.nth == 0 || call == faults.nth)
			return faults.result;
	}
	return CUDA_SUCCESS;
}

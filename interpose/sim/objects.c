/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The process: initialisation, fork, the life of objects, and the slow beginning of an API call.
 */
#define _GNU_SOURCE
#include "interpose/sim/objects.h"

#include <ctype.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "interpose/sim/control.h"

struct process process = { .lock = PTHREAD_MUTEX_INITIALIZER };
_Thread_local struct thread thread;

/* Freed objects by size, so that a handle's memory stays an object for ever. */
#define SIZE_CLASSES 24
static pthread_mutex_t free_lock = PTHREAD_MUTEX_INITIALIZER;
static struct object *free_objects[SIZE_CLASSES];

void *object_new(enum object_kind kind, size_t bytes)
{
	unsigned class = 64u - (unsigned)__builtin_clzll(bytes - 1);
	struct object *o;

	pthread_mutex_lock(&free_lock);
	o = free_objects[class];
	if (o)
		free_objects[class] = o->next_free;
	pthread_mutex_unlock(&free_lock);
	if (!o)
		o = aligned_alloc(SIM_LINE, (1ull << class) < SIM_LINE ? SIM_LINE : 1ull << class);
	if (!o)
		return NULL;
	memset(o, 0, bytes);
	o->size_class = class;
	o->magic = (uint32_t)kind;
	return o;
}

void object_free(void *object)
{
	struct object *o = object;

	o->magic = 0;
	pthread_mutex_lock(&free_lock);
	o->next_free = free_objects[o->size_class];
	free_objects[o->size_class] = o;
	pthread_mutex_unlock(&free_lock);
}

static void after_fork(void)
{
	if (!process.ready && !process.forked)
		return;
	process.ready = 0;
	process.forked = true;
}

static bool uuid_matches(const struct sim_device *d, const char *text, size_t length)
{
	unsigned digits = 0;

	if (length < 4 || strncmp(text, "GPU-", 4) != 0)
		return false;
	for (size_t i = 4; i < length; i++) {
		unsigned nibble;

		if (text[i] == '-')
			continue;
		if (!isxdigit((unsigned char)text[i]) || digits == 32)
			return false;
		nibble = digits % 2 ? d->uuid[digits / 2] & 15u : d->uuid[digits / 2] >> 4;
		if ((unsigned)(isdigit((unsigned char)text[i]) ? text[i] - '0' : tolower(text[i]) - 'a' + 10) != nibble)
			return false;
		digits++;
	}
	return digits > 0;
}

/* The node's device that one entry of CUDA_VISIBLE_DEVICES names, or -1: an index, or the beginning of one UUID. */
static int device_named(const char *text, size_t length)
{
	int found = -1;
	char *end;

	if (length && isdigit((unsigned char)text[0])) {
		unsigned long index = strtoul(text, &end, 10);

		return end == text + length && index < sim_node->devices ? (int)index : -1;
	}
	for (unsigned i = 0; i < sim_node->devices; i++) {
		if (!uuid_matches(&sim_node->device[i], text, length))
			continue;
		if (found >= 0)
			return -1; /* not unique */
		found = (int)i;
	}
	return found;
}

/* The list ends at the first entry that names nothing; a device named twice leaves none, as in the real driver. */
static void find_visible(void)
{
	const char *list = getenv("CUDA_VISIBLE_DEVICES");
	uint32_t seen = 0;

	process.count = 0;
	if (!list) {
		process.count = (int)sim_node->devices;
		for (unsigned i = 0; i < sim_node->devices; i++)
			process.node_index[i] = i;
		return;
	}
	while (*list) {
		size_t length;
		int device;

		list += strspn(list, " ");
		length = strcspn(list, ", ");
		device = device_named(list, length);
		if (device < 0)
			return;
		if (seen & 1u << device) {
			process.count = 0;
			return;
		}
		seen |= 1u << device;
		process.node_index[process.count++] = (unsigned)device;
		list += length;
		list += strspn(list, " ");
		if (*list != ',')
			return;
		list++;
	}
}

CUresult process_init(void)
{
	static bool watched;
	CUresult r = CUDA_SUCCESS;

	if (process.forked)
		return CUDA_ERROR_NOT_INITIALIZED;
	pthread_mutex_lock(&process.lock);
	if (process.ready)
		goto out;
	r = CUDA_ERROR_NO_DEVICE;
	if (sim_node_open() != 0)
		goto out;
	sim_control_poll(0);
	if (!watched)
		pthread_atfork(NULL, NULL, after_fork);
	watched = true;
	r = CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
	if (sim_node->knobs.version_skew)
		goto out;
	r = CUDA_ERROR_NO_DEVICE;
	find_visible();
	if (process.count == 0)
		goto out;
	r = CUDA_SUCCESS;
	/* P1: pairs with nothing but program order in other threads, which synchronise by calling cuInit themselves */
	__atomic_store_n(&process.ready, 1, __ATOMIC_RELEASE);
out:
	pthread_mutex_unlock(&process.lock);
	return r;
}

CUresult api_enter_slowly(const char *function)
{
	struct context *ctx = thread.current;
	uint64_t until_ns;
	uint32_t result;

	if (!process.ready)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (sim_node->knobs.call_ns) {
		until_ns = sim_now_ns() + sim_node->knobs.call_ns;
		while (sim_now_ns() < until_ns)
			;
	}
	if (sim_control_fault(function, &result))
		return (CUresult)result;
	/* What a program sees of a GPU that fell off the bus: every call that needs it fails, and nothing heals. */
	if (object_is(ctx, OBJECT_CONTEXT) && sim_node->knobs.lost[ctx->device])
		return CUDA_ERROR_UNKNOWN;
	return CUDA_SUCCESS;
}

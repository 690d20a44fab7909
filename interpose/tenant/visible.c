/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CUDA_VISIBLE_DEVICES before the driver reads it.
 *
 * A grant of `sluice run` is on a machine whose driver sees all cards, so an index would count the machine's: 0 may be
 * a GPU of another grant, while NVML and a container number the grant's own from 0. Indices are therefore replaced by
 * the UUIDs of the grant's GPUs in NVML's order, and a variable that is not set by the grant's whole list. Where NVML
 * shows no other GPU (containers) nothing is changed: the driver's own numbers are right.
 */
#include "interpose/tenant/visible.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "interpose/attach/attach.h"
#include "interpose/attach/places.h"

#define VARIABLE "CUDA_VISIBLE_DEVICES"
#define NVML_UUID_BYTES 96
#define LIST_BYTES 4096

static struct {
	int (*init)(void);
	int (*shutdown)(void);
	int (*count)(unsigned int *count);
	int (*by_index)(unsigned int index, void **device);
	int (*uuid)(void *device, char *text, unsigned int bytes);
	int (*mig_count)(void *device, unsigned int *count);
	int (*mig_by_index)(void *device, unsigned int index, void **mig);
} nvml;

void visible_uuid_text(const uint8_t u[16], char ret_text[VISIBLE_UUID_TEXT])
{
	snprintf(ret_text, VISIBLE_UUID_TEXT, "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
	         u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
}

/* The real library: ours shows only the grant. False where it lacks one of the functions that every release has. */
static bool load(const struct sluice_policy *policy)
{
	const char *path = (const char *)policy->nvml_path;
	void *handle = reallib_open_other(path[0] == '/' ? path : NULL, "libnvidia-ml.so.1");

	if (!handle)
		return false;
	*(void **)&nvml.init = dlsym(handle, "nvmlInit_v2");
	*(void **)&nvml.shutdown = dlsym(handle, "nvmlShutdown");
	*(void **)&nvml.count = dlsym(handle, "nvmlDeviceGetCount_v2");
	*(void **)&nvml.by_index = dlsym(handle, "nvmlDeviceGetHandleByIndex_v2");
	*(void **)&nvml.uuid = dlsym(handle, "nvmlDeviceGetUUID");
	*(void **)&nvml.mig_count = dlsym(handle, "nvmlDeviceGetMaxMigDeviceCount");
	*(void **)&nvml.mig_by_index = dlsym(handle, "nvmlDeviceGetMigDeviceHandleByIndex");
	return nvml.init && nvml.shutdown && nvml.count && nvml.by_index && nvml.uuid;
}

static bool granted(const struct sluice_policy *policy, void *device, char ret_name[NVML_UUID_BYTES])
{
	char text[VISIBLE_UUID_TEXT];

	if (nvml.uuid(device, ret_name, NVML_UUID_BYTES) != 0 || strlen(ret_name) < 4)
		return false;
	for (uint32_t i = 0; i < policy->header.device_count && i < SLUICE_MAX_DEVICES; i++) {
		visible_uuid_text(policy->dev[i].gpu_uuid, text);
		if (strcmp(ret_name + 4, text) == 0)
			return true;
	}
	return false;
}

/* CUDA shows one MIG device of a card to a process: the first that is in the grant. */
static bool granted_mig(const struct sluice_policy *policy, void *card, char ret_name[NVML_UUID_BYTES])
{
	unsigned int count = 0;
	void *mig;

	if (!nvml.mig_count || !nvml.mig_by_index || nvml.mig_count(card, &count) != 0)
		return false;
	for (unsigned int i = 0; i < count; i++)
		if (nvml.mig_by_index(card, i, &mig) == 0 && granted(policy, mig, ret_name))
			return true;
	return false;
}

struct gpus {
	char name[SLUICE_MAX_DEVICES][NVML_UUID_BYTES];
	unsigned int count;
	bool others; /* NVML shows a GPU that is not in the grant */
};

static void list_grant(const struct sluice_policy *policy, struct gpus *ret_gpus)
{
	unsigned int all = 0;
	void *device;

	*ret_gpus = (struct gpus){ .count = 0 };
	if (!load(policy) || nvml.init() != 0)
		return;
	if (nvml.count(&all) != 0)
		all = 0;
	for (unsigned int i = 0; i < all && ret_gpus->count < SLUICE_MAX_DEVICES; i++) {
		char *name = ret_gpus->name[ret_gpus->count];

		if (nvml.by_index(i, &device) == 0 && granted(policy, device, name)) {
			ret_gpus->count++;
		} else {
			ret_gpus->others = true;
			if (nvml.by_index(i, &device) == 0 && granted_mig(policy, device, name))
				ret_gpus->count++;
		}
	}
	nvml.shutdown();
}

/* The index that an entry begins with, as the driver reads it: leading blanks and a plus sign are skipped, what follows
 * the digits is ignored. False: the entry is a UUID or nothing that the driver knows. */
static bool is_index(const char *entry, unsigned long *ret_index)
{
	char *end;

	entry += strspn(entry, " \t");
	if (*entry == '+')
		entry++;
	if (*entry < '0' || *entry > '9')
		return false;
	*ret_index = strtoul(entry, &end, 10);
	return true;
}

static bool has_index(const char *list)
{
	unsigned long index;

	for (const char *entry = list; entry; entry = strchr(entry, ',')) {
		entry += *entry == ',';
		if (is_index(entry, &index))
			return true;
	}
	return false;
}

/* An entry that is no GPU ends the driver's list: "-1" stands for an index that the grant does not have. */
static bool renamed(const char *list, const struct gpus *gpus, char ret_list[LIST_BYTES])
{
	size_t used = 0;
	unsigned long index;

	for (const char *entry = list; entry; entry = strchr(entry, ',')) {
		entry += *entry == ',';
		int length = (int)strcspn(entry, ","), n;
		const char *separator = used ? "," : "";

		if (!is_index(entry, &index))
			n = snprintf(ret_list + used, LIST_BYTES - used, "%s%.*s", separator, length, entry);
		else
			n = snprintf(ret_list + used, LIST_BYTES - used, "%s%s", separator,
			             index < gpus->count ? gpus->name[index] : "-1");
		if (n < 0 || (size_t)n >= LIST_BYTES - used)
			return false;
		used += (size_t)n;
	}
	return true;
}

/* Point the variable at our text, which is never freed: setenv() allocates and locks in a stranger's process. */
static void set_variable(char *setting)
{
	size_t count = 0;
	char **more;

	for (; environ && environ[count]; count++) {
		if (strncmp(environ[count], VARIABLE "=", sizeof(VARIABLE)) == 0) {
			__atomic_store_n(&environ[count], setting, __ATOMIC_RELEASE);
			return;
		}
	}
	more = calloc(count + 2, sizeof(*more));
	if (!more)
		return;
	for (size_t i = 0; i < count; i++)
		more[i] = environ[i];
	more[count] = setting;
	__atomic_store_n(&environ, more, __ATOMIC_RELEASE);
}

void visible_prepare(void)
{
	static char setting[sizeof(VARIABLE) + LIST_BYTES] = VARIABLE "=";
	const char *list = getenv(VARIABLE);
	struct attach_region region;
	char text[LIST_BYTES] = "";
	struct gpus gpus;
	size_t used = 0;

	if ((list && !has_index(list)) || attach_map(&region) != 0)
		return;
	list_grant(region.policy, &gpus);
	if (!gpus.others || !gpus.count)
		return;
	for (unsigned int i = 0; !list && i < gpus.count; i++)
		used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s", i ? "," : "", gpus.name[i]);
	if (list && !renamed(list, &gpus, text))
		return;
	memcpy(setting + sizeof(VARIABLE), text, strlen(text) + 1);
	set_variable(setting);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The management library as a tenant sees it (libnvidia-ml.so.1): its own GPUs, its own memory, its own processes.
 *
 * For programs that query the GPU before they use it, nvidia-smi first of all. It only reads: no slot is taken, no
 * memory is charged, and in a process without a grant every call is forwarded as it is. NVML gives no access to GPU
 * memory or time, so no limit is enforced here.
 */
#include "interpose/nvml/nvml.h"

#include <dlfcn.h>
#include <string.h>

#include "interpose/attach/places.h"

struct nvml_table nvml_real = {
#define HOOK(ret, name, params) .name = lazy_##name,
#define DRIVER_ONLY(ret, name, params) .name = lazy_##name,
#include "interpose/nvml/hooks.def"
#undef HOOK
#undef DRIVER_ONLY
};

static const char *const names[] = {
#define HOOK(ret, name, params) #name,
#define DRIVER_ONLY(ret, name, params) #name,
#include "interpose/nvml/hooks.def"
#undef HOOK
#undef DRIVER_ONLY
#define HOOK(ret, name, params)
#define DRIVER_ONLY(ret, name, params) #name,
#define FORWARD(name) #name,
#include "interpose/nvml/hooks.def"
#include "interpose/nvml/forward.def"
#undef HOOK
#undef DRIVER_ONLY
};

#define NAMES (sizeof(names) / sizeof(names[0]))
#define TABLE (sizeof(struct nvml_table) / sizeof(void *))

static void *handle; /* NULL: not loaded yet; `none`: there is no real library */
static char none;

bool nvml_grant(struct attach_region *ret_region)
{
	return attach_map(ret_region) == 0;
}

/* Idempotent: racing threads store the same values. */
void *nvml_load(void)
{
	struct attach_region region;
	const char *path = NULL;
	void *h = __atomic_load_n(&handle, __ATOMIC_ACQUIRE);
	void **table = (void **)&nvml_real;

	if (h)
		return h == &none ? NULL : h;
	if (nvml_grant(&region) && region.policy->nvml_path[0] == '/')
		path = (const char *)region.policy->nvml_path;
	h = reallib_open(path, "libnvidia-ml.so.1");
	for (size_t i = 0; i < TABLE; i++)
		__atomic_store_n(&table[i], h ? dlsym(h, names[i]) : NULL, __ATOMIC_RELAXED);
	__atomic_store_n(&handle, h ? h : &none, __ATOMIC_RELEASE);
	return h;
}

static nvmlReturn_t missing(void)
{
	return NVML_ERROR_FUNCTION_NOT_FOUND;
}

__attribute__((visibility("hidden"))) void *trampoline_resolve(size_t index, void **slot);
void *trampoline_resolve(size_t index, void **slot)
{
	void *h = nvml_load();
	void *target = h && index < NAMES ? dlsym(h, names[index]) : NULL;

	if (!target)
		target = (void *)missing;
	__atomic_store_n(slot, target, __ATOMIC_RELAXED);
	return target;
}

/* --- the GPUs of the grant ---------------------------------------------------------------------------------------- */

static int nibble(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return -1;
}

/* "GPU-…" or "MIG-…" to the 16 bytes by which CUDA knows the device. */
static bool parse_uuid(const char *text, uint8_t ret_uuid[16])
{
	int digits = 0;

	if (strncmp(text, "GPU-", 4) != 0 && strncmp(text, "MIG-", 4) != 0)
		return false;
	for (text += 4; *text && digits < 32; text++) {
		int value = nibble(*text);

		if (*text == '-')
			continue;
		if (value < 0)
			return false;
		if (digits % 2)
			ret_uuid[digits / 2] = (uint8_t)(ret_uuid[digits / 2] | value);
		else
			ret_uuid[digits / 2] = (uint8_t)(value << 4);
		digits++;
	}
	return digits == 32 && *text == 0;
}

int nvml_device_of(const struct attach_region *region, nvmlDevice_t device)
{
	char text[UUID_TEXT] = { 0 };
	uint8_t uuid[16];

	if (!nvml_real.nvmlDeviceGetUUID || nvml_real.nvmlDeviceGetUUID(device, text, sizeof(text)) != NVML_SUCCESS ||
	    !parse_uuid(text, uuid))
		return -1;
	for (uint32_t i = 0; i < region->policy->header.device_count && i < SLUICE_MAX_DEVICES; i++)
		if (memcmp(region->policy->dev[i].gpu_uuid, uuid, sizeof(uuid)) == 0)
			return (int)i;
	return -1;
}

bool nvml_is_ours(const struct attach_region *region, nvmlDevice_t device)
{
	unsigned int count = 0;
	nvmlDevice_t mig;

	if (nvml_device_of(region, device) >= 0)
		return true;
	if (!nvml_real.nvmlDeviceGetMaxMigDeviceCount || !nvml_real.nvmlDeviceGetMigDeviceHandleByIndex ||
	    nvml_real.nvmlDeviceGetMaxMigDeviceCount(device, &count) != NVML_SUCCESS)
		return false;
	for (unsigned int i = 0; i < count; i++)
		if (nvml_real.nvmlDeviceGetMigDeviceHandleByIndex(device, i, &mig) == NVML_SUCCESS &&
		    nvml_device_of(region, mig) >= 0)
			return true;
	return false;
}

nvmlReturn_t nvml_list(const struct attach_region *region, nvmlDevice_t ours[MAX_GPUS], unsigned int *ret_count)
{
	unsigned int all = 0, count = 0;
	nvmlDevice_t device;
	nvmlReturn_t r;

	nvml_load();
	if (!nvml_real.nvmlDeviceGetCount_v2 || !nvml_real.nvmlDeviceGetHandleByIndex_v2)
		return NVML_ERROR_FUNCTION_NOT_FOUND;
	r = nvml_real.nvmlDeviceGetCount_v2(&all);
	for (unsigned int i = 0; r == NVML_SUCCESS && i < all && count < MAX_GPUS; i++)
		if (nvml_real.nvmlDeviceGetHandleByIndex_v2(i, &device) == NVML_SUCCESS && nvml_is_ours(region, device))
			ours[count++] = device;
	if (r == NVML_SUCCESS) /* like the real library: an error writes no output */
		*ret_count = count;
	return r;
}

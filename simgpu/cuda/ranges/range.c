/* SPDX-License-Identifier: Apache-2.0 */
/* Charged ranges. Small ones share pages, so the charge of a context's small ranges together is in whole pages. */
#include "simgpu/cuda/ranges/ranges.h"

#include <ctype.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "simgpu/cuda/base/process.h"

static uint64_t in_pages(uint64_t bytes)
{
	return (bytes + SIM_PAGE - 1) / SIM_PAGE * SIM_PAGE;
}

unsigned sim_size_class(uint64_t bytes)
{
	unsigned class = 0;

	while ((UINT64_C(512) << class) < bytes)
		class ++;
	return class;
}

/* In a page shared by several ranges the managed part cannot be determined. */
static bool is_managed(const struct sim_range *range)
{
	return range->kind == SIM_RANGE_MANAGED && !range->shared;
}

static struct sim_range *range_charged(struct sim_range like, uint64_t pages_charged)
{
	struct sim_device *d = sim_device_get(like.device);

	if (!(is_managed(&like) ? sim_charge_managed(d, pages_charged) : sim_charge_hard(d, pages_charged)))
		return NULL;
	struct sim_range *r = sim_range_make(like.bytes, SIM_PAGE);

	if (!r) {
		(is_managed(&like) ? sim_uncharge_managed : sim_uncharge)(d, pages_charged);
		return NULL;
	}
	r->kind = like.kind;
	r->bytes = like.bytes;
	r->charged = like.charged;
	r->shared = like.shared;
	r->device = like.device;
	r->context = like.context;
	if (r->kind == SIM_RANGE_MANAGED)
		__atomic_add_fetch(&sim_process()->client->managed, 1, __ATOMIC_RELAXED);
	return r;
}

struct sim_range *sim_range_charged(int device, struct CUctx_st *context, enum sim_range_kind kind, uint64_t bytes,
                                    uint64_t charged)
{
	struct sim_range like = {
		.device = device, .context = context, .kind = kind, .bytes = bytes, .charged = charged
	};

	return range_charged(like, charged);
}

struct sim_range *sim_range_packed(struct CUctx_st *context, enum sim_range_kind kind, uint64_t bytes, uint64_t taken)
{
	struct sim_range like = { .device = context->device, .context = context, .kind = kind, .bytes = bytes };

	if (taken > UINT64_MAX - SIM_PAGE)
		return NULL;
	if (taken > SIM_PAGE / 2)
		return sim_range_charged(context->device, context, kind, bytes, in_pages(taken));
	like.shared = UINT64_C(512) << sim_size_class(taken);
	struct sim_range *r =
		range_charged(like, in_pages(context->shared_bytes + like.shared) - in_pages(context->shared_bytes));

	if (r)
		context->shared_bytes += like.shared;
	return r;
}

void sim_range_drop(struct sim_range *range)
{
	uint64_t charged = range->charged;

	if (range->shared) {
		charged = in_pages(range->context->shared_bytes);
		range->context->shared_bytes -= range->shared;
		charged -= in_pages(range->context->shared_bytes);
	}
	if (range->kind == SIM_RANGE_MANAGED)
		__atomic_sub_fetch(&sim_process()->client->managed, 1, __ATOMIC_RELAXED);
	(is_managed(range) ? sim_uncharge_managed : sim_uncharge)(sim_device_get(range->device), charged);
	sim_range_free(range);
}

/* Files of shared memory: the name holds the kind and the GPU's number, which an importer cannot find out otherwise. */

CUresult sim_memfd_device(int fd, const char *kind, int *ret_device)
{
	char link[64], target[96], wanted[64];
	unsigned gpu;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	ssize_t n = readlink(link, target, sizeof(target) - 1);

	target[n > 0 ? n : 0] = 0;
	snprintf(wanted, sizeof(wanted), "/memfd:%s", kind);
	if (strncmp(target, wanted, strlen(wanted)) != 0 || !isdigit((unsigned char)target[strlen(wanted)]))
		return CUDA_ERROR_INVALID_VALUE;
	gpu = (unsigned)strtoul(target + strlen(wanted), NULL, 10);
	for (int d = 0; sim_device_get(d); d++)
		if (sim_device_get(d)->gpu_index == gpu) {
			*ret_device = d;
			return CUDA_SUCCESS;
		}
	return CUDA_ERROR_INVALID_DEVICE;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Files of shared memory: the name holds the kind and the GPU's number, which an importer cannot find out otherwise. */
#include "simgpu/cuda/ranges/memfd.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "simgpu/cuda/base/process.h"

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

/* SPDX-License-Identifier: Apache-2.0 */
/* Every symbol of a real management library that is not modelled: present, but not supported. Weak: see cuda/rest.c. */
#include "simgpu/nvml/nvml.h"

static nvmlReturn_t not_supported(void)
{
	nvmlReturn_t r = nvml_enter();

	return r == NVML_SUCCESS ? NVML_ERROR_NOT_SUPPORTED : r;
}

#define REST(symbol)                                                                                                   \
	__attribute__((weak)) NVML_API nvmlReturn_t symbol(void)                                                       \
	{                                                                                                              \
		return not_supported();                                                                                \
	}
#include "rest_nvml.inc"

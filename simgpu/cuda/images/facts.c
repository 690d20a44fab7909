/* SPDX-License-Identifier: Apache-2.0 */
/* Facts about a code image in the order of their discovery. */
#include "simgpu/cuda/images/images.h"

#include <stdlib.h>
#include <string.h>

struct sim_image_kernel *sim_image_kernel_add(struct sim_image *image, const char *name, size_t length)
{
	struct sim_image_kernel *k = image->kernels;

	while (k && !(strlen(k->name) == length && memcmp(k->name, name, length) == 0))
		k = k->next;
	if (k)
		return k;
	k = calloc(1, sizeof(*k));
	if (!k || !(k->name = strndup(name, length))) {
		free(k);
		return NULL;
	}
	struct sim_image_kernel **end = &image->kernels; /* in the order of the image */

	while (*end)
		end = &(*end)->next;
	return *end = k;
}

struct sim_image_variable *sim_image_variable_add(struct sim_image *image, const char *name, size_t length,
                                                  uint64_t bytes)
{
	struct sim_image_variable *v = calloc(1, sizeof(*v));

	if (!v || !(v->name = strndup(name, length))) {
		free(v);
		return NULL;
	}
	v->bytes = bytes;
	v->next = image->variables;
	return image->variables = v;
}

bool sim_image_param_add(struct sim_image_kernel *kernel, uint32_t index, uint32_t offset, uint32_t bytes)
{
	if (index >= SIM_PARAMS)
		return true;
	if (index >= kernel->param_count) {
		void *grown = realloc(kernel->param, (index + 1) * sizeof(kernel->param[0]));

		if (!grown)
			return false;
		kernel->param = grown;
		memset(&kernel->param[kernel->param_count], 0,
		       (index + 1 - kernel->param_count) * sizeof(kernel->param[0]));
		kernel->param_count = index + 1;
	}
	kernel->param[index].offset = (uint16_t)offset;
	kernel->param[index].bytes = (uint16_t)bytes;
	return true;
}

void sim_image_free(struct sim_image *image)
{
	for (struct sim_image_kernel *k = image->kernels, *next; k; k = next) {
		next = k->next;
		free(k->param);
		free(k->name);
		free(k);
	}
	for (struct sim_image_variable *v = image->variables, *next; v; v = next) {
		next = v->next;
		free(v->initial);
		free(v->name);
		free(v);
	}
	free(image);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Facts about a code image: kernels, their parameters and resources, variables; and the functions that add them. */
#ifndef SIM_FACTS_H
#define SIM_FACTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SIM_PARAMS 512 /* per kernel; the driver takes 4 KiB of them, 32 KiB since CUDA 12.1 */

struct sim_image_kernel {
	struct sim_image_kernel *next;
	char *name;
	uint32_t registers; /* per thread; 0 = not specified */
	uint32_t shared_bytes, const_bytes, local_bytes;
	uint32_t threads_most; /* per block; 0 = not specified */
	uint32_t param_count;
	struct {
		uint16_t offset, bytes;
	} *param;
};

struct sim_image_variable {
	struct sim_image_variable *next;
	char *name;
	uint64_t bytes;
	bool managed;
	uint8_t *initial; /* of size `bytes`; NULL = zero */
};

struct sim_image {
	bool opaque;           /* an unreadable image: any requested kernel exists in it */
	bool ptx;              /* compiled at load, so valid for every device from `architecture` on */
	uint32_t architecture; /* 90; 0 = not specified */
	struct sim_image_kernel *kernels;
	struct sim_image_variable *variables;
};

/* Readers of an image add facts by these. NULL or false = out of memory. */
struct sim_image_kernel *sim_image_kernel_add(struct sim_image *image, const char *name, size_t length);
struct sim_image_variable *sim_image_variable_add(struct sim_image *image, const char *name, size_t length,
                                                  uint64_t bytes);
bool sim_image_param_add(struct sim_image_kernel *kernel, uint32_t index, uint32_t offset, uint32_t bytes);
void sim_image_free(struct sim_image *image);

#endif

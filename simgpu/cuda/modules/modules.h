/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SIM_MODULES_H
#define SIM_MODULES_H

#include <stddef.h>

#include "simgpu/cuda/base/object.h"
#include "simgpu/cuda/images/images.h"

/* Loaded code: modules and functions, and their lock. A kernel of a library is a function that is valid in every
 * context. */

struct CUmod_st {
	uint32_t tag;
	struct CUctx_st *context; /* NULL: a library, valid in every context */
	struct sim_image *image;
	struct CUfunc_st *functions;
	struct sim_variable *variables;
};

#define SIM_FUNCTION_ATTRIBUTES 32

struct CUfunc_st {
	uint32_t tag;
	struct CUmod_st *module;
	struct CUfunc_st *next;
	const struct sim_image_kernel *facts; /* NULL: only its name is known */
	enum { SIM_KERNEL_BUSY_NS, SIM_KERNEL_FOREVER, SIM_KERNEL_OTHER } kind;
	bool loaded; /* its code is on the device since its first launch */
	int attribute[SIM_FUNCTION_ATTRIBUTES];
	struct sim_function_state *state; /* state of the calls from before CUDA 4, NULL = never set */
	char name[];                      /* mangled names are long */
};

/* One lock for modules, their functions and variables. */
void sim_module_lock(void);
void sim_module_unlock(void);
/* Compute capability as images name it: 90. */
static inline uint32_t sim_architecture(const struct sim_model *model)
{
	return model->cc_major * 10 + model->cc_minor;
}

/* Functions: their attributes and their duration. */

/* The attributes of a new function. */
void sim_function_attributes(struct CUfunc_st *function);
/* The device time of a launch of so many blocks with so many threads each. */
uint64_t sim_kernel_ns(const struct CUfunc_st *function, const struct sim_model *model, uint64_t blocks,
                       uint64_t threads, void **params);

/* Variables of modules and libraries. */

/* Free the memory of its variables. */
void sim_module_variables_gone(struct CUmod_st *module);

/* Files that a program names: modules, and inputs of the linker. */

/* A whole file, followed by a 0 byte, to be freed. NULL = unreadable. */
void *sim_file_bytes(const char *path, size_t *ret_bytes);

#endif

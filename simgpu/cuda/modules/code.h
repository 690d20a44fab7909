/* SPDX-License-Identifier: Apache-2.0 */
/* Loaded code: modules and functions, and their lock. A kernel of a library is a function that is valid in every
 * context. */
#ifndef SIM_CODE_H
#define SIM_CODE_H

#include "simgpu/cuda/base/object.h"
#include "simgpu/cuda/images/facts.h"

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

#endif

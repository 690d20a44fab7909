/* SPDX-License-Identifier: Apache-2.0 */
/* What the files about code share. A kernel of a library is a function that is at home in every context. */
#ifndef SIM_MODULE_H
#define SIM_MODULE_H

#include "interpose/sim/cuda/image.h"
#include "interpose/sim/object.h"

/* module_lock.c */
void sim_module_lock(void);
void sim_module_unlock(void);
/* Compute capability as images name it: 90. */
static inline uint32_t sim_architecture(const struct sim_model *model)
{
	return model->cc_major * 10 + model->cc_minor;
}
/* function.c: what a fresh function says of itself. */
void sim_function_attributes(struct CUfunc_st *function);
/* variable.c: gives back what its variables take. */
void sim_module_variables_gone(struct CUmod_st *module);

#endif

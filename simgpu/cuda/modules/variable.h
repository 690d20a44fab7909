/* SPDX-License-Identifier: Apache-2.0 */
/* Variables of modules and libraries. */
#ifndef SIM_VARIABLE_H
#define SIM_VARIABLE_H

#include "simgpu/cuda/modules/code.h"

/* Free the memory of its variables. */
void sim_module_variables_gone(struct CUmod_st *module);

#endif

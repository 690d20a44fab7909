/* SPDX-License-Identifier: Apache-2.0 */
/* Variables of modules and libraries. */
#ifndef SIM_VARIABLE_H
#define SIM_VARIABLE_H

#include "simgpu/cuda/modules/code.h"

/* Give back what its variables take. */
void sim_module_variables_gone(struct CUmod_st *module);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Reading PTX. */
#ifndef SIM_PTX_H
#define SIM_PTX_H

#include "simgpu/cuda/images/facts.h"

/* Add what a text says. false = no memory. */
bool sim_image_ptx(struct sim_image *image, const char *text, size_t bytes);

#endif

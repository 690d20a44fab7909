/* SPDX-License-Identifier: Apache-2.0 */
/* Reading PTX. */
#ifndef SIM_PTX_H
#define SIM_PTX_H

#include "simgpu/cuda/images/facts.h"

/* Add the facts of a PTX text. false = out of memory. */
bool sim_image_ptx(struct sim_image *image, const char *text, size_t bytes);

#endif

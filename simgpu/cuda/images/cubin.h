/* SPDX-License-Identifier: Apache-2.0 */
/* Reading cubins. */
#ifndef SIM_CUBIN_H
#define SIM_CUBIN_H

#include "simgpu/cuda/images/facts.h"

/* Add the facts of a binary for one architecture. false = out of memory. */
bool sim_image_elf(struct sim_image *image, const uint8_t *file, size_t bytes);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Code images: what one says about itself. Reads cubins (ELF), PTX and fat binaries of both, as far as they are not
 * compressed. Anything else is an image of which nothing is known: every kernel that is asked for is in it.
 */
#ifndef SIM_IMAGE_H
#define SIM_IMAGE_H

#include "simgpu/cuda/images/facts.h"

/* Of the image at `code`, for a device of that compute capability (90; 0 = any). NULL = no memory. */
struct sim_image *sim_image_read(const void *code, uint32_t device);
/* May a device of that compute capability run it? */
bool sim_image_runs(const struct sim_image *image, uint32_t device);
/* How many bytes the image has, as it says itself. 0 = it does not. */
size_t sim_image_bytes(const void *code);

#endif

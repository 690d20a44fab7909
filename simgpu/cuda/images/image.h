/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Code images: their description of themselves. Reads cubins (ELF), PTX and fat binaries of both, unless they are
 * compressed. Any other image is unreadable: every requested kernel exists in it.
 */
#ifndef SIM_IMAGE_H
#define SIM_IMAGE_H

#include "simgpu/cuda/images/facts.h"

/* Reads the image at `code`, for a device of that compute capability (90; 0 = any). NULL = out of memory. */
struct sim_image *sim_image_read(const void *code, uint32_t device);
/* True if a device of that compute capability can run it. */
bool sim_image_runs(const struct sim_image *image, uint32_t device);
/* The size of the image by its own headers. 0 = unknown. */
size_t sim_image_bytes(const void *code);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Memory in a file of its own, whose descriptor other processes are given. */
#ifndef SIM_MEMFD_H
#define SIM_MEMFD_H

#include "simgpu/cuda/base/object.h"

/* The ordinal here of the GPU that a shared file of this kind (the first part of its name) belongs to. */
CUresult sim_memfd_device(int fd, const char *kind, int *ret_device);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Memory in a file of its own, whose descriptor is passed to other processes. */
#ifndef SIM_MEMFD_H
#define SIM_MEMFD_H

#include "simgpu/cuda/base/object.h"

/* This process's ordinal of the GPU to which a shared file of this kind (the first part of its name) belongs. */
CUresult sim_memfd_device(int fd, const char *kind, int *ret_device);

#endif

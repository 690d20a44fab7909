/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory that the driver allocated or registered. With the memory lock held. */
#ifndef SIM_HOST_H
#define SIM_HOST_H

#include "simgpu/cuda/base/object.h"

bool sim_host_covers(uint64_t address, uint64_t bytes);
CUresult sim_host_attribute(void *data, CUpointer_attribute attribute, CUdeviceptr address);

#endif

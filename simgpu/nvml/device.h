/* SPDX-License-Identifier: Apache-2.0 */
/* The names of a device. */
#ifndef SIM_NVML_DEVICE_H
#define SIM_NVML_DEVICE_H

#include "simgpu/nvml/nvml.h"

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *text, unsigned bytes);
nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *text, unsigned bytes);
nvmlReturn_t nvml_bus_id(nvmlDevice_t device, char *text, unsigned bytes); /* as NVML writes it */

#endif

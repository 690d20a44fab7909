/* SPDX-License-Identifier: Apache-2.0 */
/* The directory of the simulated node, and the time of its devices: available to every file of the simulator. */
#ifndef SIM_PLACE_H
#define SIM_PLACE_H

#include <stdint.h>

const char *sim_directory(void); /* SLUICE_SIM_DIR, or this user's default */
uint64_t sim_now_ns(void);

#endif

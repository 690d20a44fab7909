/* SPDX-License-Identifier: Apache-2.0 */
/* Where the simulated node is kept, and the time of its devices: what every file of the simulator may ask. */
#ifndef SIM_PLACE_H
#define SIM_PLACE_H

#include <stdint.h>

const char *sim_directory(void); /* SLUICE_SIM_DIR, or one of this user */
uint64_t sim_now_ns(void);

#endif

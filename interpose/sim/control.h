/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The knobs by which a test makes the simulated node slow, broken or strange. docs/simulator.md lists them.
 *
 * Each is `key=value`. They come from the environment of whoever creates the node (SLUICE_SIM_<KEY>), from the file
 * `control` in its directory, and from the program sluice-sim, which sets them at once.
 */
#ifndef SIM_CONTROL_H
#define SIM_CONTROL_H

#include <stdbool.h>
#include <stdint.h>

struct sim_knobs;

/* Values of a new node: defaults, then the environment. */
void sim_control_defaults(struct sim_knobs *knobs);

/* Set one knob of the open node. 0, or -EINVAL for an unknown key or a bad value. */
int sim_control_set(const char *key, const char *value);

/* Read the control file again if it changed. Looks at most once per millisecond unless `now_ns` is 0. */
void sim_control_poll(uint64_t now_ns);

/* Is this call of `function` to fail? If so *ret_result is what it returns. */
bool sim_control_fault(const char *function, uint32_t *ret_result);

/* Write all knobs as `key=value` lines; returns the length as snprintf does. */
int sim_control_print(char *text, unsigned long bytes);

/* Record XID `xid` on `device`, as the driver does for the event sets that watch it. */
void sim_control_xid(unsigned device, unsigned xid);

#endif

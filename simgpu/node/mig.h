/* SPDX-License-Identifier: Apache-2.0 */
/* The geometry of cards in MIG mode: possible places of an instance, its creation and its destruction. Functions that
 * change it are called with the node's geometry lock held. */
#ifndef SIM_MIG_H
#define SIM_MIG_H

#include "simgpu/node/state.h"

#define SIM_MIG_SLICES 8  /* memory slices */
#define SIM_MIG_COMPUTE 7 /* compute slices */

/* The n-th GPU instance of a card, with or without its compute instance; NULL when it has fewer. */
struct sim_gpu *mig_instance(struct sim_state *state, const struct sim_gpu *card, unsigned n);
/* Memory slices at which an instance of that form can be created now, one bit each. */
uint32_t mig_free(struct sim_state *state, const struct sim_gpu *card, const struct sim_model *cut);
/* The number of further instances of that form that fit if no others are created. */
unsigned mig_room(struct sim_state *state, const struct sim_gpu *card, const struct sim_model *cut);
/* The free place that leaves most places to all forms, the last of equal ones; -1 when there is none. */
int mig_best(struct sim_state *state, const struct sim_gpu *card, const struct sim_model *cut);
/* Creates an instance without a compute instance; NULL when the node has no place left for it. */
struct sim_gpu *mig_make(struct sim_state *state, struct sim_gpu *card, const struct sim_model *cut, unsigned slice);
/* False while a client uses it. */
bool mig_destroy(struct sim_state *state, struct sim_gpu *instance);
/* "1g.10gb+3g.40gb" from `list` up to `end`, on a card that has no instance yet: 0, or -1 when it cannot be cut so. */
int mig_cut(struct sim_state *state, unsigned card, const char *list, const char *end);

#endif

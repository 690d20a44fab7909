/* SPDX-License-Identifier: Apache-2.0 */
/* The geometry of cards in MIG mode: where an instance may be, making one and taking it away. All that change anything
 * are called with the node's geometry lock held. */
#ifndef SIM_MIG_H
#define SIM_MIG_H

#include "simgpu/node/state.h"

#define SIM_MIG_SLICES 8  /* of memory */
#define SIM_MIG_COMPUTE 7 /* slices */

/* The n-th GPU instance of a card, with or without its compute instance; NULL when it has fewer. */
struct sim_gpu *mig_instance(struct sim_state *state, const struct sim_gpu *card, unsigned n);
/* Memory slices at which an instance of that form can be made now, one bit each. */
uint32_t mig_free(struct sim_state *state, const struct sim_gpu *card, const struct sim_model *cut);
/* How many more of that form fit, if nothing else is made. */
unsigned mig_room(struct sim_state *state, const struct sim_gpu *card, const struct sim_model *cut);
/* The free place that leaves most places to all forms, of equal ones the last; -1 when there is none. */
int mig_best(struct sim_state *state, const struct sim_gpu *card, const struct sim_model *cut);
/* Without a compute instance; NULL when the node has no place left for it. */
struct sim_gpu *mig_make(struct sim_state *state, struct sim_gpu *card, const struct sim_model *cut, unsigned slice);
/* False when somebody uses it. */
bool mig_destroy(struct sim_state *state, struct sim_gpu *instance);
/* "1g.10gb+3g.40gb" from `list` up to `end`, on a card that has no instance yet: 0, or -1 when it cannot be cut so. */
int mig_cut(struct sim_state *state, unsigned card, const char *list, const char *end);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Stream capture: every call that puts work on a stream first checks whether that stream is being captured. */
#ifndef SIM_CAPTURE_H
#define SIM_CAPTURE_H

#include "simgpu/cuda/graphs/graph.h"

enum sim_capture { SIM_RUN, SIM_CAPTURED, SIM_CAPTURE_ERROR };

enum sim_capture sim_capture_or_run(struct CUstream_st *stream, const struct sim_node_params *node,
                                    CUresult *ret_error);
/* True if a capture forbids calls which could wait for the captured work. */
bool sim_capture_forbids(void);
/* The same at a query of an event, which also ends every capture in global mode. */
bool sim_capture_violated(void);
/* The session to which a captured event belongs, while it lasts. */
struct sim_session *sim_session_of(struct CUctx_st *context, unsigned long long id);
/* The stream's next node depends on these nodes, too. false: too many dependencies. */
bool sim_tips_add(struct CUstream_st *stream, struct CUgraphNode_st *const *tips, unsigned count);

#endif

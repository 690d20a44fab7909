/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams that cannot go on: what they are told to do meanwhile is kept, and done when they get there.
 *
 * Everywhere else work is submitted at the call, in one order for the whole context. That is no longer possible behind a
 * wait for a value in memory: whoever ends the wait may come later, on another stream or from another process. So each
 * held stream has a queue here, and one thread of the process, which runs only while there are held streams, looks at
 * what they wait for as a GPU polls memory, and submits what is due. A stream that waits for an event of a held one is held,
 * too; the legacy stream and the blocking ones hold each other.
 */
#ifndef SIM_HOLD_H
#define SIM_HOLD_H

#include "simgpu/cuda/base/object.h"

/* `argument`: the entry's own copy. Asked often, with the queues locked: no driver call, no waiting. */
typedef bool sim_ready(struct CUstream_st *stream, const void *argument);
/* Done once, with no lock held. */
typedef void sim_act(struct CUstream_st *stream, void *argument);

extern uint32_t sim_held_streams;
bool sim_hold_look(struct CUstream_st *stream);

/* Is the stream, or one whose work comes before its, held? Nothing to be held at all is the common case. */
static inline bool sim_held(struct CUstream_st *stream)
{
	return __builtin_expect(__atomic_load_n(&sim_held_streams, __ATOMIC_ACQUIRE) != 0, 0) && sim_hold_look(stream);
}

/* Keep `act` (NULL: nothing) for when the stream gets there and `ready` (NULL: at once) is true. The entry's number is
 * in *ret_ticket, when that is asked for, before anybody can get there. */
CUresult sim_hold(struct CUstream_st *stream, sim_ready *ready, sim_act *act, const void *argument, size_t bytes,
                  uint64_t *ret_ticket);
/* Device time, and what is to be done once the work before has ended. */
CUresult sim_hold_work(struct CUstream_st *stream, uint64_t duration_ns);
sim_ready sim_ready_idle;
/* Has the stream got past entry `ticket`? It may be gone already. With the queues locked: sim_hold_past. */
bool sim_hold_pending(const struct CUstream_st *stream, uint64_t ticket);
bool sim_hold_past(const struct CUstream_st *stream, uint64_t ticket);
/* Wait until it has. */
void sim_hold_wait_for(const struct CUstream_st *stream, uint64_t ticket);
/* The entry does nothing when it is its turn; returns when it is not just being done. */
void sim_hold_cancel(struct CUstream_st *stream, uint64_t ticket);
/* Wait until nothing is kept that comes before what the stream would be told now; NULL: any stream of the context. */
CUresult sim_hold_wait(struct CUctx_st *context, struct CUstream_st *stream);
/* The stream is destroyed: true: it goes, and is freed, when its queue is done. */
bool sim_hold_orphan(struct CUstream_st *stream);
/* The context ends: what is kept for it is forgotten. */
void sim_hold_drop(struct CUctx_st *context);

#endif

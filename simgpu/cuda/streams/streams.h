/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SIM_STREAMS_H
#define SIM_STREAMS_H

#include "simgpu/cuda/base/call.h"
#include "simgpu/cuda/base/object.h"

/* Streams: the meaning of a handle, and a context's list. */

/* The stream of a handle: NULL and the special values become the context's own. NULL: an invalid handle. */
struct CUstream_st *sim_stream(struct CUctx_st *context, CUstream handle);
/* Locks the lists of all contexts: `streams` of one may be iterated in between. */
void sim_streams_lock(void);
void sim_streams_unlock(void);
void sim_context_streams_gone(struct CUctx_st *context);

/* Like SIM_CALL_CONTEXT, for a call on a stream. */
#define SIM_STREAM(s, handle)                                                                                          \
	SIM_CALL_CONTEXT(context_);                                                                                    \
	struct CUstream_st *s = sim_stream(context_, handle);                                                          \
	SIM_PASS(s ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE)

/*
 * Streams that cannot continue: later work on them is queued here, and submitted when they get there.
 *
 * Everywhere else work is submitted at the call, in one order for the whole context. That is impossible behind a wait
 * for a value in memory: the operation that ends the wait may come later, on another stream or from another process. So
 * each held stream has a queue here, and one thread of the process, which runs only while there are held streams, polls
 * the memory they wait for, as a GPU does, and submits the work that is due. A stream that waits for an event of a held
 * one is held, too; the legacy stream and the blocking ones hold each other.
 */

/* `argument`: the entry's own copy. Called often, with the queues locked: it may not call the driver or wait. */
typedef bool sim_ready(struct CUstream_st *stream, const void *argument);
/* Called once, with no lock held. */
typedef void sim_act(struct CUstream_st *stream, void *argument);

extern uint32_t sim_held_streams;
bool sim_hold_look(struct CUstream_st *stream);

/* True if the stream is held, or one whose work precedes its work. Usually no stream is held at all. */
static inline bool sim_held(struct CUstream_st *stream)
{
	return __builtin_expect(__atomic_load_n(&sim_held_streams, __ATOMIC_ACQUIRE) != 0, 0) && sim_hold_look(stream);
}

/* Queue `act` (NULL: no action) until the stream gets there and `ready` (NULL: at once) is true. *ret_ticket, if given,
 * is set to the entry's number before any thread can run it. */
CUresult sim_hold(struct CUstream_st *stream, sim_ready *ready, sim_act *act, const void *argument, size_t bytes,
                  uint64_t *ret_ticket);
/* Takes device time, and runs an action once the work before has ended. */
CUresult sim_hold_work(struct CUstream_st *stream, uint64_t duration_ns);
sim_ready sim_ready_idle;
/* Has the stream passed entry `ticket`? The stream may be freed already. With the queues locked: sim_hold_past. */
bool sim_hold_pending(const struct CUstream_st *stream, uint64_t ticket);
bool sim_hold_past(const struct CUstream_st *stream, uint64_t ticket);
/* Wait until the stream has passed the entry. */
void sim_hold_wait_for(const struct CUstream_st *stream, uint64_t ticket);
/* Cancels the entry: it does nothing when its turn comes. Returns when it is not in progress. */
void sim_hold_cancel(struct CUstream_st *stream, uint64_t ticket);
/* Wait until no queued entry precedes new work on the stream; NULL: on any stream of the context. */
CUresult sim_hold_wait(struct CUctx_st *context, struct CUstream_st *stream);
/* The stream is destroyed. True: its queue is not done yet, and the stream is freed when it is. */
bool sim_hold_orphan(struct CUstream_st *stream);
/* The context ends: its queued entries are dropped. */
void sim_hold_drop(struct CUctx_st *context);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SIM_CALL_H
#define SIM_CALL_H

#include "simgpu/cuda/base/object.h"
#include "simgpu/cuda/base/process.h"
#include "simgpu/node/place.h"
#include "simgpu/node/state.h"

/* The contexts that exist, and the one in which a thread works. */

/* NULL: there is no usable one; sim_no_context() gives the reason. */
struct CUctx_st *sim_current(void);
CUresult sim_no_context(void);
/* The context that the thread made current last, even if it is unusable; NULL: none. */
struct CUctx_st *sim_current_top(void);

/* The thread's stack of them. */
bool sim_current_push(struct CUctx_st *context); /* false: the stack is full */
bool sim_current_pop(struct CUctx_st **ret_context);
void sim_current_set(struct CUctx_st *context); /* replaces the top of the stack; NULL removes it */
void sim_current_forget(const struct CUctx_st *context);

/* Tells a stale handle from a valid one. */
bool sim_context_alive(const struct CUctx_st *context);
/* A primary context that is not retained: it may be made current, but calls in it fail. */
bool sim_context_inactive(const struct CUctx_st *context);
void sim_context_listed(struct CUctx_st *context);
void sim_context_unlisted(const struct CUctx_st *context);

/*
 * The place where calls of a process wait while another process has locked it for a checkpoint.
 *
 * A call passes the gate when it begins, and counts as inside while it changes state that a checkpoint moves: the
 * account of a device, or a context's queue. The locking process shuts the gate first and then waits until no thread is
 * inside, so no such state changes under it. The count of a process that is killed inside ends with its record.
 */

/* Wait until the gate is open. */
void sim_gate_wait(const struct sim_client *client);
/* The same, and then the thread counts as inside until it leaves; not twice in one thread. */
void sim_gate_enter(struct sim_client *client);
void sim_gate_leave(struct sim_client *client);

static inline void sim_gate_pass(const struct sim_client *client)
{
	if (__builtin_expect(__atomic_load_n(&client->checkpoint, __ATOMIC_RELAXED) != 0, 0))
		sim_gate_wait(client);
}

/*
 * The common beginning of every entry point of the driver. SIM_PASS and the macros made of it are the only ones here
 * that return: some 400 entry points begin with it, and each would otherwise repeat the same four lines
 * (docs/node/simulator.md).
 */

#define SIM_API __attribute__((visibility("default")))

/* Continue if `check` is CUDA_SUCCESS, otherwise return its value. */
#define SIM_PASS(check)                                                                                                \
	do {                                                                                                           \
		CUresult r_ = (check);                                                                                 \
		if (r_ != CUDA_SUCCESS)                                                                                \
			return r_;                                                                                     \
	} while (0)

static inline CUresult sim_started(const struct sim_process *process)
{
	return process ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

static inline CUresult sim_usable(const struct CUctx_st *context)
{
	if (!context)
		return sim_no_context();
	return context->gpu->lost ? CUDA_ERROR_DEVICE_UNAVAILABLE : CUDA_SUCCESS;
}

static inline CUresult sim_passed(const struct sim_process *process)
{
	if (process)
		sim_gate_pass(process->client);
	return sim_started(process);
}

/* First line of every call: applies the knobs and checks that cuInit has run. It waits here while its process is locked
 * for a checkpoint. */
#define SIM_CALL()                                                                                                     \
	SIM_PASS(sim_enter_call(__func__));                                                                            \
	SIM_PASS(sim_passed(sim_process()))

/* The same for a call in a context, which is `name` from here on. */
#define SIM_CALL_CONTEXT(name)                                                                                         \
	SIM_CALL();                                                                                                    \
	struct CUctx_st *name = sim_current();                                                                         \
	SIM_PASS(sim_usable(name))

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How every door of the driver begins. SIM_PASS and what is made of it are the one kind of macro here that returns: some
 * 400 doors begin with it, and each would otherwise spend four lines on saying the same (docs/node/simulator.md).
 */
#ifndef SIM_CALL_H
#define SIM_CALL_H

#include "simgpu/cuda/base/current.h"
#include "simgpu/cuda/base/gate.h"
#include "simgpu/cuda/base/process.h"
#include "simgpu/node/knobs.h"

#define SIM_API __attribute__((visibility("default")))

/* Go on where `check` is CUDA_SUCCESS, answer what it says otherwise. */
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

/* First line of every call: knobs, initialised? And it waits here while its process is locked for a checkpoint. */
#define SIM_CALL()                                                                                                     \
	SIM_PASS(sim_enter_call(__func__));                                                                            \
	SIM_PASS(sim_passed(sim_process()))

/* The same where work is done in a context, which is `name` from here on. */
#define SIM_CALL_CONTEXT(name)                                                                                         \
	SIM_CALL();                                                                                                    \
	struct CUctx_st *name = sim_current();                                                                         \
	SIM_PASS(sim_usable(name))

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The common beginning of every entry point of the driver. SIM_PASS and the macros made of it are the only ones here
 * that return: some 400 entry points begin with it, and each would otherwise repeat the same four lines
 * (docs/node/simulator.md).
 */
#ifndef SIM_CALL_H
#define SIM_CALL_H

#include "simgpu/cuda/base/current.h"
#include "simgpu/cuda/base/gate.h"
#include "simgpu/cuda/base/process.h"
#include "simgpu/node/knobs.h"

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

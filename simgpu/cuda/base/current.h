/* SPDX-License-Identifier: Apache-2.0 */
/* The contexts that exist, and the one in which a thread works. */
#ifndef SIM_CURRENT_H
#define SIM_CURRENT_H

#include "simgpu/cuda/base/object.h"

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

#endif

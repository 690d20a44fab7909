/* SPDX-License-Identifier: Apache-2.0 */
/* Which contexts there are, and in which of them a thread works. */
#ifndef SIM_CURRENT_H
#define SIM_CURRENT_H

#include "simgpu/cuda/base/object.h"

/* NULL: none in which something could be done; sim_no_context() says why. */
struct CUctx_st *sim_current(void);
CUresult sim_no_context(void);
/* Whatever the thread made current last, one in which nothing can be done included; NULL: nothing. */
struct CUctx_st *sim_current_top(void);

/* The thread's stack of them. */
bool sim_current_push(struct CUctx_st *context); /* false: it is full */
bool sim_current_pop(struct CUctx_st **ret_context);
void sim_current_set(struct CUctx_st *context); /* in the place of the top; NULL takes that away */
void sim_current_forget(const struct CUctx_st *context);

/* To tell a stale handle from a good one. */
bool sim_context_alive(const struct CUctx_st *context);
/* A primary context that nobody retains: it may be made current, but nothing can be done in it. */
bool sim_context_inactive(const struct CUctx_st *context);
void sim_context_listed(struct CUctx_st *context);
void sim_context_unlisted(const struct CUctx_st *context);

#endif

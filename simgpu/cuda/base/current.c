/* SPDX-License-Identifier: Apache-2.0 */
/* The contexts of this process, and each thread's stack of them. */
#include "simgpu/cuda/base/call.h"

#include <pthread.h>
#include <time.h>

#include "simgpu/cuda/base/process.h"

#define STACK 32

static __thread struct CUctx_st *stack[STACK];
static __thread int depth;
static struct CUctx_st *contexts; /* all live contexts */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

bool sim_context_alive(const struct CUctx_st *wanted)
{
	bool found = false;

	pthread_mutex_lock(&mutex);
	for (struct CUctx_st *c = contexts; c && !found; c = c->next)
		found = c == wanted;
	pthread_mutex_unlock(&mutex);
	return found;
}

void sim_context_listed(struct CUctx_st *context)
{
	pthread_mutex_lock(&mutex);
	context->next = contexts;
	contexts = context;
	pthread_mutex_unlock(&mutex);
}

void sim_context_unlisted(const struct CUctx_st *context)
{
	pthread_mutex_lock(&mutex);
	for (struct CUctx_st **at = &contexts; *at; at = &(*at)->next) {
		if (*at == context) {
			*at = context->next;
			break;
		}
	}
	pthread_mutex_unlock(&mutex);
}

bool sim_context_inactive(const struct CUctx_st *context)
{
	for (int d = 0; sim_device_get(d); d++)
		if (context && sim_device_get(d)->primary == context)
			return context->tag == SIM_TAG_INACTIVE;
	return false;
}

struct CUctx_st *sim_current(void)
{
	return depth > 0 && stack[depth - 1] && stack[depth - 1]->tag == SIM_TAG_CONTEXT ? stack[depth - 1] : NULL;
}

struct CUctx_st *sim_current_top(void)
{
	return depth > 0 ? stack[depth - 1] : NULL;
}

CUresult sim_no_context(void)
{
	return sim_context_inactive(sim_current_top()) ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_ERROR_INVALID_CONTEXT;
}

bool sim_current_push(struct CUctx_st *context)
{
	if (depth == STACK)
		return false;
	stack[depth++] = context;
	return true;
}

bool sim_current_pop(struct CUctx_st **ret_context)
{
	if (depth == 0)
		return false;
	depth--;
	*ret_context = stack[depth];
	return true;
}

void sim_current_set(struct CUctx_st *context)
{
	if (depth == 0)
		depth = 1;
	stack[depth - 1] = context;
	if (!context)
		depth--;
}

void sim_current_forget(const struct CUctx_st *context)
{
	for (int i = 0; i < depth; i++)
		if (stack[i] == context)
			stack[i] = NULL;
}

/* Calls of a process that is being checkpointed wait at this gate; see call.h. */

void sim_gate_wait(const struct sim_client *client)
{
	struct timespec nap = { .tv_nsec = 200000 }; /* a process is locked for seconds: a fraction is exact enough */

	while (__atomic_load_n(&client->checkpoint, __ATOMIC_SEQ_CST) != 0)
		nanosleep(&nap, NULL);
}

void sim_gate_enter(struct sim_client *client)
{
	for (;;) {
		/* G1: pairs with the store and the load in shut(), checkpoint.c: one of the two sees the other. */
		__atomic_add_fetch(&client->inside, 1, __ATOMIC_SEQ_CST);
		if (__atomic_load_n(&client->checkpoint, __ATOMIC_SEQ_CST) == 0)
			return;
		sim_gate_leave(client);
		sim_gate_wait(client);
	}
}

void sim_gate_leave(struct sim_client *client)
{
	__atomic_sub_fetch(&client->inside, 1, __ATOMIC_RELEASE);
}

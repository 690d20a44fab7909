/* SPDX-License-Identifier: Apache-2.0 */
/*
 * User objects: reference-counted resources with a destructor. Graphs may hold references, and so do their copies. The
 * destructor runs in the thread that drops the last reference; a real driver uses a separate thread.
 */
#include "simgpu/cuda/graphs/graphs.h"

#include <pthread.h>
#include <stdlib.h>

#include "simgpu/cuda/base/call.h"

#define TAG UINT32_C(0x554f4231)

struct CUuserObject_st {
	uint32_t tag;
	uint64_t references;
	CUhostFn destroy;
	void *argument;
};

struct held {
	const struct CUgraph_st *graph;
	CUuserObject object;
	uint64_t references;
	struct held *next;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct held *all_held;

static CUresult release(CUuserObject object, uint64_t count)
{
	pthread_mutex_lock(&mutex);
	bool enough = object->references >= count, last = object->references == count;

	if (enough)
		object->references -= count;
	pthread_mutex_unlock(&mutex);
	if (enough && last) {
		object->tag = 0;
		object->destroy(object->argument);
		free(object);
	}
	return enough ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult hold(const struct CUgraph_st *graph, CUuserObject object, uint64_t count)
{
	struct held *h = malloc(sizeof(*h));

	if (!h)
		return CUDA_ERROR_OUT_OF_MEMORY;
	pthread_mutex_lock(&mutex);
	*h = (struct held){ graph, object, count, all_held };
	all_held = h;
	pthread_mutex_unlock(&mutex);
	return CUDA_SUCCESS;
}

void sim_graph_objects_copied(const struct CUgraph_st *from, const struct CUgraph_st *to)
{
	pthread_mutex_lock(&mutex);
	struct held *list = all_held; /* new entries are inserted before it */

	pthread_mutex_unlock(&mutex);
	for (struct held *h = list; h; h = h->next) {
		if (h->graph != from)
			continue;
		pthread_mutex_lock(&mutex);
		h->object->references += h->references;
		pthread_mutex_unlock(&mutex);
		hold(to, h->object, h->references);
	}
}

void sim_graph_objects_gone(const struct CUgraph_st *graph)
{
	for (;;) {
		pthread_mutex_lock(&mutex);
		struct held **at = &all_held, *h;

		while (*at && (*at)->graph != graph)
			at = &(*at)->next;
		h = *at;
		if (h)
			*at = h->next;
		pthread_mutex_unlock(&mutex);
		if (!h)
			return;
		release(h->object, h->references);
		free(h);
	}
}

SIM_API CUresult cuUserObjectCreate(CUuserObject *object, void *argument, CUhostFn destroy, unsigned references,
                                    unsigned flags)
{
	SIM_CALL();
	if (!object || !destroy || references == 0 || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
		return CUDA_ERROR_INVALID_VALUE;
	CUuserObject made = malloc(sizeof(*made));

	if (!made)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*made = (struct CUuserObject_st){ TAG, references, destroy, argument };
	*object = made;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuUserObjectRetain(CUuserObject object, unsigned count)
{
	SIM_CALL();
	if (!SIM_HANDLE(object, TAG) || count == 0)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&mutex);
	object->references += count;
	pthread_mutex_unlock(&mutex);
	return CUDA_SUCCESS;
}

SIM_API CUresult cuUserObjectRelease(CUuserObject object, unsigned count)
{
	SIM_CALL();
	if (!SIM_HANDLE(object, TAG) || count == 0)
		return CUDA_ERROR_INVALID_VALUE;
	return release(object, count);
}

SIM_API CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned count, unsigned flags)
{
	SIM_CALL();
	if (!graph || !SIM_HANDLE(object, TAG) || count == 0 || flags > CU_GRAPH_USER_OBJECT_MOVE)
		return CUDA_ERROR_INVALID_VALUE;
	if (!(flags & CU_GRAPH_USER_OBJECT_MOVE)) {
		pthread_mutex_lock(&mutex);
		object->references += count;
		pthread_mutex_unlock(&mutex);
	}
	return hold(graph, object, count);
}

SIM_API CUresult cuGraphReleaseUserObject(CUgraph graph, CUuserObject object, unsigned count)
{
	SIM_CALL();
	struct held **at = &all_held, *empty = NULL;

	if (!graph || !SIM_HANDLE(object, TAG) || count == 0)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&mutex);
	while (*at && !((*at)->graph == graph && (*at)->object == object && (*at)->references >= count))
		at = &(*at)->next;
	bool found = *at != NULL;

	if (found && ((*at)->references -= count) == 0) {
		empty = *at;
		*at = empty->next;
	}
	pthread_mutex_unlock(&mutex);
	free(empty);
	return found ? release(object, count) : CUDA_ERROR_INVALID_VALUE;
}

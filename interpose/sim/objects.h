/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the simulated driver keeps inside one process: the objects behind its handles, and how an API call begins.
 *
 * Handles are pointers to these structs. Their memory is never given back and `magic` is cleared on destruction, so a
 * stale handle is recognised as the real driver recognises it, with an error and not with a crash.
 */
#ifndef SIM_OBJECTS_H
#define SIM_OBJECTS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "interpose/cuda_abi.h"
#include "interpose/sim/device.h"

#define API __attribute__((visibility("default")))
#define LIKELY(x) __builtin_expect(!!(x), 1)

#define MAX_CONTEXTS 256 /* per process */

enum object_kind {
	OBJECT_CONTEXT = 0x43545831,
	OBJECT_STREAM,
	OBJECT_EVENT,
	OBJECT_MODULE,
	OBJECT_LIBRARY,
	OBJECT_FUNCTION,
	OBJECT_POOL,
	OBJECT_PHYSICAL,
	OBJECT_ARRAY,
	OBJECT_MIPMAP,
	OBJECT_GRAPH,
	OBJECT_NODE,
	OBJECT_EXEC,
};

/* First member of every object. */
struct object {
	uint32_t magic; /* an object_kind, 0 once destroyed */
	uint32_t size_class;
	struct object *next_free;
};

struct context;
struct graph;
struct capture;

struct stream {
	struct object object;
	struct context *ctx;
	struct stream *next; /* of the context */
	uint64_t last;       /* ticket of the last operation submitted */
	uint64_t id;
	unsigned flags;
	int priority;
	struct capture *capture; /* NULL: not capturing */
};

struct event {
	struct object object;
	struct context *ctx;
	unsigned flags;
	struct context *recorded_in; /* NULL: never recorded */
	uint64_t ticket;
	uint64_t submit_ns;
	uint64_t finish_ns;       /* 0: still in the queue's ring */
	struct capture *captured; /* recorded into this capture: not an event one can query */
	struct graph_node *captured_after;
	int ipc;                  /* slot in the table of shared events, -1: none */
	struct ipc_event *shared; /* and where it is */
};

struct context {
	struct object object;
	unsigned ordinal; /* CUdevice */
	unsigned device;  /* index in the node */
	unsigned lane;
	unsigned index; /* in `process.contexts` */
	unsigned flags;
	unsigned api_version;
	uint64_t id;
	uint64_t overhead_bytes;
	bool primary;
	CUresult sticky; /* set by an error that a context does not survive */
	unsigned users;  /* of cuCtxAttach */
	struct timeline_op *ring;
	struct sim_lane *shared;
	size_t limit[16];
	uint32_t peers; /* bit per ordinal */
	unsigned capturing; /* streams that capture in a mode that forbids implicit work */
	struct stream legacy;
	struct stream *streams;
	pthread_mutex_t streams_lock;
	/* the queue's producer side */
	_Alignas(SIM_LINE) uint32_t submit_lock;
	uint64_t tail;
	uint64_t done_seen; /* cache of the shared count: enough to know that the ring is not full */
	struct event *waiting[TIMELINE_RING]; /* events whose finish time is in that ring entry */
};

struct function {
	struct object object;
	struct module *module;
	struct function *next;
	char name[64];
	enum { COST_BUSY_NS, COST_FOREVER, COST_MODEL } cost;
	size_t dynamic_shared;
	unsigned block[3]; /* of the pre-4.0 launch interface */
	int attribute[CU_FUNC_ATTRIBUTE_MAX];
	uint64_t param0;
};

struct module {
	struct object object;
	struct context *ctx; /* NULL for a library's */
	struct module *next;
	struct function *functions;
	struct global *globals;
	pthread_mutex_t lock;
};

/* Everything of the process; lives from cuInit on. */
struct process {
	uint32_t ready;
	bool forked; /* the parent was initialised: the driver does not work in its children */
	int count;   /* visible devices */
	unsigned node_index[SIM_DEVICES];
	pthread_mutex_t lock; /* contexts, and everything rare */
	struct context *contexts[MAX_CONTEXTS];
	struct context *primary[SIM_DEVICES];
	unsigned primary_users[SIM_DEVICES];
	unsigned primary_flags[SIM_DEVICES];
	uint64_t next_id;
};

extern struct process process;

#define MAX_STACK 64

struct thread {
	struct context *current; /* the top of the stack */
	unsigned depth;
	struct context *stack[MAX_STACK];
	struct context *own_context; /* whose per-thread stream is cached */
	struct stream *own_stream;
	CUstreamCaptureMode capture_mode;
};

extern _Thread_local struct thread thread;

/* --- objects.c --------------------------------------------------------------------------------------------------- */

/* A zeroed object with its magic set; NULL without memory. */
void *object_new(enum object_kind kind, size_t bytes);
void object_free(void *object);

static inline bool object_is(const void *object, enum object_kind kind)
{
	return object && ((const struct object *)object)->magic == (uint32_t)kind;
}

/* How every API function begins: is there a driver, and does a knob want this call to fail? */
CUresult api_enter_slowly(const char *function);

static inline CUresult api_enter(const char *function)
{
	if (LIKELY(process.ready && !__atomic_load_n(&sim_node->knobs.armed, __ATOMIC_RELAXED)))
		return CUDA_SUCCESS;
	return api_enter_slowly(function);
}

/* The same for functions that need a current context. */
static inline CUresult api_enter_ctx(const char *function, struct context **ret_ctx)
{
	CUresult r = api_enter(function);
	struct context *ctx = thread.current;

	if (r != CUDA_SUCCESS)
		return r;
	if (!ctx || !object_is(ctx, OBJECT_CONTEXT))
		return ctx ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_ERROR_INVALID_CONTEXT;
	if (ctx->sticky != CUDA_SUCCESS)
		return ctx->sticky;
	*ret_ctx = ctx;
	return CUDA_SUCCESS;
}

/* cuInit's body. */
CUresult process_init(void);

/* --- context.c --------------------------------------------------------------------------------------------------- */

/* The context, current or not, that `handle` names. */
static inline struct context *context_of(CUcontext handle)
{
	return object_is(handle, OBJECT_CONTEXT) ? (struct context *)handle : NULL;
}

bool ordinal_valid(CUdevice dev);

static inline struct sim_device *node_device(CUdevice dev)
{
	return &sim_node->device[process.node_index[dev]];
}

/* --- stream.c ---------------------------------------------------------------------------------------------------- */

/* The stream a handle names in `ctx`; NULL if none. */
struct stream *stream_of(struct context *ctx, CUstream handle);

/* What a call begins with that works on a stream: entering, and resolving the handle. The stream may be another context's. */
CUresult api_enter_stream(const char *function, CUstream handle, struct stream **ret_stream);

/* The same, for calls that are forbidden while that stream, or the thread, captures. */
CUresult api_enter_idle_stream(const char *function, CUstream handle, struct stream **ret_stream);

/* Forbidden while a capture of this thread does not allow implicit work. */
CUresult capture_allows_unsafe(struct context *ctx);

void context_streams_free(struct context *ctx);

/* --- submit.c ---------------------------------------------------------------------------------------------------- */

struct submission {
	enum timeline_kind kind;
	uint64_t cost_ns;
	struct event *event; /* wants the finish time */
	unsigned wait_device;
	unsigned wait_lane;
	uint64_t wait_ticket;
};

/* Queue one operation on `stream`, waiting while the ring is full; returns its ticket. */
uint64_t submit(struct stream *stream, const struct submission *s);

/* Wait until `ticket` of the context is complete. */
CUresult context_wait(struct context *ctx, uint64_t ticket);

/* Is it complete now? */
bool context_passed(struct context *ctx, uint64_t ticket);

/* When the event finished; 0 if that is not known (yet). */
uint64_t event_finish_ns(struct event *event);

/* Before the context goes: events keep their finish times. */
void submit_harvest(struct context *ctx);

/* A host function in stream order. */
CUresult submit_host(struct stream *stream, void (*function)(void *), void *arg);

#endif

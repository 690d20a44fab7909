/* SPDX-License-Identifier: Apache-2.0 */
/* What a handle of the simulated driver points to, and how calls find their way: private to this process. */
#ifndef SIM_OBJECT_H
#define SIM_OBJECT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "interpose/cuda_abi.h"
#include "interpose/sim/knobs.h"
#include "interpose/sim/state.h"

#define SIM_API __attribute__((visibility("default")))
#define SIM_DEVICES SIM_GPUS

enum sim_tag {
	SIM_TAG_CONTEXT = 0x43545831,
	SIM_TAG_INACTIVE = 0x43545832, /* a primary context that nobody retains: its handle stays good */
	SIM_TAG_STREAM = 0x53545231,
	SIM_TAG_EVENT = 0x45565431,
	SIM_TAG_MODULE = 0x4d4f4431,
	SIM_TAG_FUNCTION = 0x46554e31,
	SIM_TAG_GRAPH = 0x47524131,
	SIM_TAG_EXEC = 0x47455831,
	SIM_TAG_NODE = 0x474e4f31,
	SIM_TAG_ARRAY = 0x41525231,
	SIM_TAG_MIPMAP = 0x4d495031,
	SIM_TAG_POOL = 0x504f4f31,
};

#define SIM_STREAM_ATTRIBUTES 4
#define SIM_TIPS 16 /* graph nodes that a stream's next one depends on */

/* A capture in progress: the stream it began on and those that joined by waiting for an event of it. */
struct sim_session {
	struct CUgraph_st *graph;
	struct CUstream_st *origin;
	CUstreamCaptureMode mode;
	unsigned long long id;
	bool broken;
	bool borrowed; /* the graph is the caller's: cuStreamBeginCaptureToGraph */
};

struct CUstream_st {
	uint32_t tag;
	struct CUctx_st *context;
	unsigned flags;
	int priority;
	uint64_t last;               /* sequence of the last operation submitted through it */
	struct sim_session *session; /* NULL = not capturing */
	struct CUgraphNode_st *tip[SIM_TIPS];
	unsigned tips;
	CUstreamAttrValue attribute[SIM_STREAM_ATTRIBUTES];
	CUgreenCtx green;
	struct CUstream_st *next; /* of the context */
	pid_t thread;             /* a per-thread default stream: whose; 0 = an ordinary one */
	/* hold.c, under its lock */
	struct sim_held *held; /* what it is to do when it can go on */
	uint64_t doing;        /* the number of the entry that is being done, 0 = none */
	bool orphan;           /* destroyed: to be freed when that is all done */
	struct CUstream_st *next_held;
};

struct CUctx_st {
	uint32_t tag;
	uint64_t id; /* of this life of the context; a primary one has several under one handle */
	struct sim_gpu *gpu;
	int device;     /* CUDA ordinal in this process */
	uint32_t index; /* lane and ring of the GPU */
	unsigned flags;
	bool primary;
	uint32_t references;
	int submit_lock; /* spin: several threads may launch into one context */
	uint64_t overhead_bytes;
	uint64_t shared_bytes; /* of small ranges that share pages, under memory's lock */
	struct CUstream_st legacy;
	struct CUstream_st *streams; /* under stream.c's lock */
	struct CUctx_st *next;
	size_t limit[16];
};

struct CUevent_st {
	uint32_t tag;
	struct CUctx_st *context;
	unsigned flags;
	uint32_t cell;
	uint64_t sequence; /* of its stamp; 0 = never recorded */
	/* last recorded on a held stream: there, as that entry, if it has not come to it yet */
	struct CUstream_st *held_on;
	uint64_t held_ticket;
	/* last recorded in a capture: cannot be queried, and a stream that waits for it joins that capture */
	unsigned long long captured_id;
	struct CUgraphNode_st *tip[SIM_TIPS];
	unsigned tips;
};

struct CUmod_st {
	uint32_t tag;
	struct CUctx_st *context; /* NULL: a library, at home in every context */
	struct sim_image *image;
	struct CUfunc_st *functions;
	struct sim_variable *variables;
};

#define SIM_FUNCTION_ATTRIBUTES 32

struct CUfunc_st {
	uint32_t tag;
	struct CUmod_st *module;
	struct CUfunc_st *next;
	const struct sim_image_kernel *facts; /* NULL: nothing is known of it but its name */
	enum { SIM_KERNEL_BUSY_NS, SIM_KERNEL_FOREVER, SIM_KERNEL_OTHER } kind;
	int attribute[SIM_FUNCTION_ATTRIBUTES];
	struct sim_function_state *state; /* of the calls from before CUDA 4, NULL = never set */
	char name[];                      /* mangled ones are long */
};

struct sim_device {
	struct sim_gpu *gpu;
	const struct sim_model *model;
	unsigned gpu_index;
	uint32_t generation; /* of the instance it is */
	struct CUctx_st *primary;
	unsigned primary_flags;
};

struct sim_process {
	struct sim_state *state;
	struct sim_client *client;
	int client_index;
	int device_count;
	struct sim_device device[SIM_DEVICES];
};

/* This process after cuInit; NULL before, and in a forked child. */
struct sim_process *sim_process(void);
int sim_process_start(void); /* CUresult */

/* First line of every call: knobs, initialised?, current context. */
#define SIM_CALL()                                                                                                     \
	do {                                                                                                           \
		CUresult r_ = sim_enter_call(__func__);                                                                \
		if (r_ != CUDA_SUCCESS)                                                                                \
			return r_;                                                                                     \
		if (!sim_process())                                                                                    \
			return CUDA_ERROR_NOT_INITIALIZED;                                                             \
	} while (0)
#define SIM_CALL_CONTEXT(name)                                                                                         \
	SIM_CALL();                                                                                                    \
	struct CUctx_st *name = sim_current();                                                                         \
	if (!name)                                                                                                     \
		return sim_no_context();                                                                               \
	if (name->gpu->lost)                                                                                           \
	return CUDA_ERROR_DEVICE_UNAVAILABLE

#define SIM_STREAM(s, handle)                                                                                          \
	SIM_CALL_CONTEXT(context_);                                                                                    \
	struct CUstream_st *s = sim_stream(context_, handle);                                                          \
	if (!s)                                                                                                        \
	return CUDA_ERROR_INVALID_HANDLE

struct CUctx_st *sim_current(void);
CUresult sim_no_context(void); /* why sim_current() is NULL */
struct sim_device *sim_device_get(CUdevice device);
/* The stream a handle means here: NULL and the special values become the context's own. */
struct CUstream_st *sim_stream(struct CUctx_st *context, CUstream handle);

/* Queue one operation; returns its sequence number. Blocks while the queue is full, as real ones do. */
uint64_t sim_submit(struct CUctx_st *context, enum sim_op_kind kind, uint64_t duration_ns, uint32_t cell);
/* Is operation `sequence` done now? */
bool sim_done(struct CUctx_st *context, uint64_t sequence);
/* Wait until it is. CUDA_SUCCESS, or the device's error. */
CUresult sim_wait(struct CUctx_st *context, uint64_t sequence);
/* The same on behalf of a program that synchronises: memory pools give back what they may. */
CUresult sim_synchronise(struct CUctx_st *context, uint64_t sequence);
uint64_t sim_kernel_ns(const struct CUfunc_st *function, const struct sim_model *model, uint64_t blocks,
                       uint64_t threads, void **params);
uint64_t sim_copy_ns(const struct CUctx_st *context, uint64_t bytes);
const struct sim_model *sim_model_of(const struct CUctx_st *context);

/* memory.c: charge the device; false = it is full. */
bool sim_charge(struct sim_device *device, uint64_t bytes);
void sim_uncharge(struct sim_device *device, uint64_t bytes);

/* capture.c: every call that puts work on a stream asks first whether that stream is being captured. */
enum sim_capture { SIM_RUN, SIM_CAPTURED, SIM_CAPTURE_ERROR };
struct sim_node_params {
	CUgraphNodeType type;
	uint64_t duration_ns;
	void (*effect)(void *argument); /* data movement or host function, done when the graph is launched */
	void *argument;                 /* copied, argument_bytes of it */
	size_t argument_bytes;
	CUDA_KERNEL_NODE_PARAMS kernel; /* of a kernel node */
};
enum sim_capture sim_capture_or_run(struct CUstream_st *stream, const struct sim_node_params *node,
                                    CUresult *ret_error);
/* Is a capture going on that forbids calls which could wait for the captured work? */
bool sim_capture_forbids(void);
void sim_context_streams_gone(struct CUctx_st *context);
struct sim_session *sim_session_of(struct CUctx_st *context, unsigned long long id);
bool sim_session_leave(struct CUstream_st *origin, struct sim_session *session);
/* graph.c */
struct CUgraph_st *sim_graph_make(void);
void sim_graph_free(struct CUgraph_st *graph);
struct CUgraphNode_st *sim_graph_add(struct CUgraph_st *graph, const struct sim_node_params *params,
                                     struct CUgraphNode_st *const *dependencies, size_t count);
/* Are all of `others` among `tips` and what those depend on? */
bool sim_graph_reaches(struct CUgraph_st *graph, struct CUgraphNode_st *const *tips, unsigned tip_count,
                       struct CUgraphNode_st *const *others, unsigned other_count);

#define SIM_HANDLE(handle, wanted) ((handle) && (handle)->tag == (wanted))

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The objects behind the handles of contexts, streams and events, and the tags that identify a handle: private to this
 * process. */
#ifndef SIM_OBJECT_H
#define SIM_OBJECT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "nativecommon/cuda_abi.h"
#include "simgpu/node/state.h"

enum sim_tag {
	SIM_TAG_CONTEXT = 0x43545831,
	SIM_TAG_INACTIVE = 0x43545832, /* a primary context that is not retained: its handle stays valid */
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
#define SIM_TIPS 16 /* graph nodes on which a stream's next node depends */

/* A capture in progress: the stream on which it began, and those that joined by waiting for an event of it. */
struct sim_session {
	struct CUgraph_st *graph;
	struct CUstream_st *origin;
	CUstreamCaptureMode mode;
	unsigned long long id;
	bool broken;
	unsigned violations; /* forbidden queries seen when it began */
	bool borrowed;       /* the caller owns the graph: cuStreamBeginCaptureToGraph */
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
	struct CUstream_st *next; /* next stream of the context */
	pid_t thread;             /* thread of a per-thread default stream; 0 = an ordinary stream */
	/* owned by streams/hold.c, under its lock */
	struct sim_held *held; /* work to do when the stream can continue */
	uint64_t doing;        /* number of the entry in progress, 0 = none */
	bool orphan;           /* destroyed: freed when all of that is done */
	struct CUstream_st *next_held;
};

struct CUctx_st {
	uint32_t tag;
	uint64_t id; /* number of this life of the context; a primary context has several under one handle */
	struct sim_gpu *gpu;
	int device;     /* CUDA ordinal in this process */
	uint32_t index; /* index of its lane and ring on the GPU */
	unsigned flags;
	bool primary;
	uint32_t references;
	int submit_lock; /* spin: several threads may launch into one context */
	uint64_t overhead_bytes;
	uint64_t shared_bytes; /* bytes of small ranges that share pages, under the memory lock */
	struct CUstream_st legacy;
	struct CUstream_st *streams; /* under streams/stream.c's lock */
	struct CUctx_st *next;
	size_t limit[16];
};

struct CUevent_st {
	uint32_t tag;
	struct CUctx_st *context;
	unsigned flags;
	uint32_t cell;
	uint64_t sequence; /* sequence number of its stamp; 0 = never recorded */
	/* the held stream on which it was recorded last, and the entry, if the stream has not reached it yet */
	struct CUstream_st *held_on;
	uint64_t held_ticket;
	/* last recorded in a capture: it cannot be queried, and a stream that waits for it joins that capture */
	unsigned long long captured_id;
	struct CUgraphNode_st *tip[SIM_TIPS];
	unsigned tips;
};

#define SIM_HANDLE(handle, wanted) ((handle) && (handle)->tag == (wanted))

#endif

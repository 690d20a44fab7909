/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated node: one file that every client maps, and the rules that keep it consistent when clients die.
 *
 * Writers: a client writes its own record and rings; the holder of a GPU's mutex writes that GPU's schedule and memory
 * words. The mutex is robust and the schedule is double-buffered (copy, compute, flip), so a SIGKILL anywhere leaves
 * the state before or after a step. A client is alive while it holds a POSIX record lock on its byte of the lock file;
 * the kernel drops that at exit, exec and SIGKILL, and a forked child does not inherit it.
 */
#ifndef SIM_STATE_H
#define SIM_STATE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "simgpu/kernel/cgroup.h"
#include "simgpu/node/model.h"
#include "simgpu/node/timeline.h"

#define SIM_GPUS 32     /* cards and MIG instances together */
#define SIM_CLIENTS 320 /* processes with CUDA; a grant alone may have 256 */
#define SIM_CELLS 8192  /* time stamps (events) of one client */
#define SIM_WALLS 256
#define SIM_STATE_MAGIC UINT64_C(0x38304d4953475053)

struct sim_client {
	uint32_t in_use;
	uint32_t pid;
	uint64_t program;                 /* with the pid, identifies this run of this program */
	uint64_t used_bytes[SIM_GPUS];    /* under that GPU's mutex */
	uint64_t managed_bytes[SIM_GPUS]; /* the part that no cgroup limit counts; likewise */
	uint64_t cgroup[SIM_CGROUPS];     /* its cgroups when it joined, innermost first; 0 ends them */
	uint64_t memory_fd_ino;           /* inode of the memfd that backs its device memory, for IPC */
	int32_t memory_fd;                /* its descriptor in the client, for /proc/PID/fd */
	uint32_t checkpoint;              /* CUprocessState; written by the checkpointing process, read by the client */
	uint32_t inside;                  /* threads that change state a checkpoint moves; client-written, atomic */
	uint32_t exported;                /* it has exported memory by IPC */
	uint32_t imported;                /* pieces of other processes' memory that it has mapped */
	uint32_t managed;                 /* number of its allocations of managed memory; client-written, atomic */
	uint64_t spilled_bytes[SIM_GPUS]; /* bytes in its host memory instead of used_bytes; under that GPU's mutex */
	uint64_t cell_ns[SIM_CELLS];      /* 0 = not reached yet */
};

struct sim_gpu {
	pthread_mutex_t mutex;
	uint32_t model;
	uint32_t published; /* which of schedule[] is valid; flipped with a release store */
	uint64_t reaped_ns; /* time of the last check for dead clients */
	uint32_t lost;      /* knob: fallen off the bus */
	uint8_t uuid[16];
	int32_t numa_node;
	uint32_t pci_bus;
	int32_t card;          /* for a MIG instance: the place of its card; -1 for a card */
	uint32_t live;         /* 0: a destroyed instance, its place is free; written last, under its mutex */
	uint32_t generation;   /* incremented for each instance created in this place */
	uint32_t gpu_instance; /* NVML's number of an instance on its card; 0 for a card */
	uint32_t slice;        /* for an instance: its first memory slice */
	uint32_t compute;      /* for an instance: its compute instance exists, it can be used */
	uint32_t mig_mode;     /* for a card: 1: it is used through instances only */
	uint32_t mig_pending;  /* for a card: the mode after its next reset */
	struct sim_schedule schedule[2];
	struct sim_ring ring[SIM_CONTEXTS];
};

/* A cgroup's limits on a card; see node/wall.h. */
struct sim_wall {
	uint64_t cgroup; /* 0: free */
	uint32_t gpu;
	uint32_t flat; /* 1: in the driver's own table, which has no hierarchy */
	uint64_t soft_bytes, hard_bytes;
};

struct sim_state {
	uint64_t magic;     /* written last, release */
	uint32_t gpu_count; /* cards and then places of MIG instances: each has its own memory and timeline */
	uint32_t card_count;
	uint64_t slice_ns;
	uint64_t switch_ns;
	pthread_mutex_t geometry; /* held while instances are created or destroyed; taken before any GPU's mutex */
	struct sim_client client[SIM_CLIENTS];
	struct sim_gpu gpu[SIM_GPUS];
	struct sim_wall wall[SIM_WALLS]; /* under its GPU's mutex */
};

/* Open the lock file whose bytes show which clients are alive; called before all other functions here. */
bool sim_clients_open(void);
/* Take a client record for this process; -1 = none free. Idempotent; a forked child gets its own. */
int sim_client_attach(struct sim_state *state);
/* The record of this process, -1 if it has none (or was forked from one that had). */
int sim_client_self(void);
bool sim_client_alive(const struct sim_state *state, unsigned client);
/* Its pid in this process's PID namespace; 0 = it has ended, or has no number here. */
uint32_t sim_client_pid(const struct sim_state *state, unsigned client);

void sim_lock(struct sim_gpu *gpu);
void sim_unlock(struct sim_gpu *gpu);
/* With the mutex held: advance the device to now and return its state. */
const struct sim_schedule *sim_advance(struct sim_state *state, struct sim_gpu *gpu);
/* With the mutex held: remove dead clients with their memory and work. */
void sim_reap(struct sim_state *state, struct sim_gpu *gpu, bool at_once);
/* The last published state, without the mutex: for counters that only grow. */
const struct sim_schedule *sim_published(const struct sim_gpu *gpu);
/* With the mutex held: change the schedule directly (open or close a context). */
struct sim_schedule *sim_edit_begin(struct sim_gpu *gpu);
void sim_edit_end(struct sim_gpu *gpu);
/* With the mutex held. */
uint64_t sim_used_bytes(const struct sim_state *state, unsigned gpu);
void sim_world(struct sim_state *state, struct sim_gpu *gpu, struct sim_world *ret_world);
unsigned sim_gpu_index(const struct sim_state *state, const struct sim_gpu *gpu);
/* The place of a GPU's card, or of an instance's card. */
unsigned sim_card_index(const struct sim_state *state, const struct sim_gpu *gpu);
/* The cards that this program sees, in order; with SLUICE_SIM_NODES=/dev those whose /dev/nvidiaN exists, as a driver
 * does in a container with some of the node's GPUs. */
unsigned sim_cards(const struct sim_state *state, unsigned ret_card[SIM_GPUS]);
bool sim_gpu_there(const struct sim_state *state, const struct sim_gpu *gpu);
/* The n-th MIG device (an instance with its compute instance) of a card; NULL when it has fewer. */
struct sim_gpu *sim_instance(struct sim_state *state, const struct sim_gpu *card, unsigned n);
/* True if any client has a context or memory there. Called with the GPU's mutex held. */
bool sim_in_use(const struct sim_state *state, const struct sim_gpu *gpu);
/* Allocates the place of a GPU or an instance: its mutex is initialised, all else is 0 or from the model. NULL: no
 * place left. */
struct sim_gpu *sim_gpu_add(struct sim_state *state, const struct sim_model *model);
/* Shared between processes, and robust. */
void sim_mutex_make(pthread_mutex_t *mutex);
void sim_mutex_lock(pthread_mutex_t *mutex);

#endif

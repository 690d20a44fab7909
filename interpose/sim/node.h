/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shared file that is the simulated node: every client of the driver and of NVML maps it.
 *
 *   struct sim_node      what the node is, its knobs, XID events, the clients, the devices and the heads of their lanes
 *   struct timeline      [device][client][2]: where that client computes a device's next state
 *   struct timeline_op   [device][lane][TIMELINE_RING]: the queues
 *
 * There is no server and no lock that a client could die or be frozen with. A client owns its slot by a POSIX record
 * lock on byte `slot` of the file `locks`, which the kernel drops when it dies and does not pass on through fork. What
 * a client holds is true only while its slot is live, so one compare-and-swap returns a dead client's memory and
 * queues. A device's state moves by a compare-and-swap from one client's buffer to another's.
 */
#ifndef SIM_NODE_H
#define SIM_NODE_H

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "interpose/sim/models.h"
#include "interpose/sim/timeline.h"

#define SIM_MAGIC 0x336d69736c756c73ull
#define SIM_DEVICES 16
#define SIM_CLIENTS 512
#define SIM_XIDS 64
#define SIM_FAULTS 8
#define SIM_LINE 64
#define SIM_FAULT_NAME 56

/* A slot's state word: generation << 32 | pid << 2 | state. One word, so that one swap settles an ownership. */
enum sim_slot_state { SLOT_FREE, SLOT_CLAIMED, SLOT_LIVE, SLOT_DEAD };

struct sim_client {
	_Alignas(SIM_LINE) uint64_t state;
	uint64_t start_ticks; /* with the pid: this process and not a later one of the same number */
	uint64_t pad[6];
	/* written by the client, read by all: its device memory, contexts included */
	_Alignas(SIM_LINE) uint64_t used_bytes[SIM_DEVICES];
	uint32_t contexts[SIM_DEVICES];
};

/* The shared head of a context's queue. */
struct sim_lane {
	/* written by the owner */
	_Alignas(SIM_LINE) uint64_t owner; /* generation << 32 | slot << 2 | SLOT_LIVE, or SLOT_CLAIMED while set up */
	uint64_t epoch;
	uint64_t dropped;
	uint64_t host;
	uint64_t host_ns;
	_Alignas(SIM_LINE) uint64_t tail;
	/* written by whoever advanced the device; only ever grows */
	_Alignas(SIM_LINE) uint64_t done;
};

struct sim_xid {
	uint64_t seq; /* 1 + its number, 0 while it is being written */
	uint64_t at_ns;
	uint32_t device;
	uint32_t xid;
};

struct sim_fault {
	char function[SIM_FAULT_NAME];
	uint32_t result;
	uint32_t armed;
	uint64_t countdown; /* calls until it happens; 1 = the next */
};

/* What can be changed at run time, see control.c. Each a single word. */
struct sim_knobs {
	uint64_t slice_ns;
	uint64_t call_ns;       /* every call takes that long */
	uint64_t context_bytes; /* 0 = the model's */
	uint64_t driver_version;
	uint64_t version_skew;
	uint64_t nvml_hang;
	uint64_t lost[SIM_DEVICES];
	uint64_t hang_kernels[SIM_DEVICES]; /* that many launches from now on never end */
	uint64_t armed;                     /* some knob makes calls slow or fail: leave the fast path */
	struct sim_fault fault[SIM_FAULTS];
	/* often written, hence beside the rest */
	_Alignas(SIM_LINE) uint64_t file_checked_ns;
	uint64_t file_mtime_ns; /* of the control file when it was last read */
};

struct sim_device {
	struct sim_model model;
	uint8_t uuid[16];
	uint32_t pci_bus;
	int32_t numa_node;
	uint32_t minor;
	uint32_t pad;
	_Alignas(SIM_LINE) uint64_t active;  /* version << 16 | client slot << 1 | buffer: where the state is */
	uint64_t applied;                    /* newest version whose log everybody can see */
	uint64_t lanes;                      /* lanes ever used */
	uint64_t checked_ns;                 /* when somebody last looked for dead clients */
	_Alignas(SIM_LINE) struct sim_lane lane[TIMELINE_LANES];
};

struct sim_node {
	uint64_t magic; /* written last */
	uint64_t bytes; /* of the file; also tells apart incompatible layouts */
	uint64_t devices;
	uint64_t born_ns;
	uint64_t clients; /* slots ever used */
	uint64_t events;  /* XIDs ever raised */
	struct sim_xid xid[SIM_XIDS];
	_Alignas(SIM_LINE) struct sim_knobs knobs;
	_Alignas(SIM_LINE) struct sim_client client[SIM_CLIENTS];
	_Alignas(SIM_LINE) struct sim_device device[SIM_DEVICES];
};

/* The mapped node of this library; NULL before sim_node_open(). */
extern __attribute__((visibility("hidden"))) struct sim_node *sim_node;
/* This library's client slot, valid while sim_node is set. */
extern __attribute__((visibility("hidden"))) unsigned sim_slot;

static inline uint64_t sim_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Map the node, creating it if it is not there, and take a client slot. Idempotent. 0 or a negative errno. */
int sim_node_open(void);

/* In a forked child: the parent's slot is not ours. The next sim_node_open() starts afresh. */
void sim_node_forget(void);

/* Path of `name` in the node's directory; false if it does not fit. */
bool sim_node_path(char *path, size_t bytes, const char *name);

static inline unsigned sim_slot_pid(uint64_t state)
{
	return (uint32_t)state >> 2;
}

static inline enum sim_slot_state sim_slot_state(uint64_t state)
{
	return (enum sim_slot_state)(state & 3);
}

/* The slot's state word if its client lives, else 0; a dead one's goes to SLOT_DEAD on the way. */
uint64_t sim_client_check(unsigned slot);

/* Do that for all slots. */
void sim_clients_reap(void);

/* The pid of a live client as the caller's pid namespace knows it; 0 if it does not. */
unsigned sim_client_pid(unsigned slot);

/* Does the client that a lane's owner word names still live? One load; dead ones look alive until checked. */
bool sim_owner_live(uint64_t owner);

/* The owner word of this client, with `state` in it. */
uint64_t sim_owner_word(enum sim_slot_state state);

struct timeline *sim_node_buffer(unsigned device, unsigned slot, unsigned which);
struct timeline_op *sim_node_ring(unsigned device, unsigned lane);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The registration message: how a tenant process gets its slot.
 *
 * One SOCK_SEQPACKET exchange over the grant's own socket (`register.sock` in the grant's directory), within 250 ms.
 * The tenant sends its protocol version and its hooks; the daemon takes the identity from SO_PEERCRED and SO_PEERPIDFD
 * and never from the message. The tenant keeps the socket open (close-on-exec): a hang-up hints that the process has
 * ended or called exec, and the pidfd decides.
 */
#ifndef SLUICE_REGISTER_H
#define SLUICE_REGISTER_H

#include <assert.h>
#include <stdint.h>

#define SLUICE_REGISTER_MAGIC UINT32_C(0x47525343) /* "CSRG" */
#define SLUICE_REGISTER_VERSION 1
#define SLUICE_REGISTER_DEADLINE_MS 250

struct sluice_register_request {
	uint32_t magic;
	uint16_t version;
	uint16_t region_major; /* the version the tenant was built for */
	uint32_t ns_pid;       /* informational: displayed only, never acted on */
	uint32_t claimed_slot; /* slot + 1 that was self-claimed while the daemon was away, 0 = none */
	uint64_t hook_mask;
};

struct sluice_register_reply {
	uint32_t magic;
	uint16_t version;
	uint16_t error; /* 0, or a positive errno: ENOSPC no slot, EPERM not of this grant, EPROTO, ESTALE revoked */
	uint32_t slot;  /* index into dir[] and slot[] */
	uint32_t reserved;
	uint64_t generation; /* odd; equals dir[slot].generation */
};

static_assert(sizeof(struct sluice_register_request) == 24, "frozen since v1");
static_assert(sizeof(struct sluice_register_reply) == 24, "frozen since v1");

#endif

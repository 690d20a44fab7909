/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The record of one launch, as the probes `sluice:launch` (kernels, graphs) and `sluice:copy` (copies, sets) pass it to
 * a tracer.
 *
 * The interposer keeps one of these per thread; at the probe's instruction a register points to it: r11 on x86-64, x9
 * on aarch64. The probe's four arguments, in this order: grant, device, cost, waited. A tenant can write any value
 * here: the reader trusts only the kernel's answer which process it is, never these fields. Both sides
 * (interpose/compute/probe.h, nodeagent/bpf/) include this file; a library whose note lists other arguments was built
 * for another version of this file.
 */
#ifndef SLUICE_LAUNCH_EVENT_H
#define SLUICE_LAUNCH_EVENT_H

#ifndef SLUICE_BPF
#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#endif

#define SLUICE_PROBE_PROVIDER "sluice"
#define SLUICE_PROBE_LAUNCH "launch"
#define SLUICE_PROBE_COPY "copy"

struct sluice_launch_event {
	uint64_t grant;     /* the first eight bytes of the grant's UUID, big-endian */
	uint64_t cost_ns;   /* GPU time charged */
	uint64_t waited_ns; /* wait at the gate: cap, queue and turn together */
	uint32_t device;    /* index within the grant */
	uint32_t reserved;
};

#ifndef SLUICE_BPF
static_assert(sizeof(struct sluice_launch_event) == 32, "read with one copy");
static_assert(offsetof(struct sluice_launch_event, device) == 24, "named in interpose/compute/probe.h");
#endif

#endif

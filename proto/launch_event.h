/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * One launch as the probes `sluice:launch` (kernels, graphs) and `sluice:copy` (copies, sets) show it.
 *
 * The interposer keeps one of these per thread; at the probe's instruction a register points to it: r11 on x86-64, x9 on
 * aarch64. The probe's four arguments, in this order: grant, device, cost, waited. A tenant can write what it likes in
 * here: the reader believes the process it found them in, nothing else. Both sides (interpose/compute/probe.h, nodeagent/bpf/)
 * include this file; where the arguments in a library's note are others, it was built for another version of this file.
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
	uint64_t waited_ns; /* at the gate, for cap, queue and turn together */
	uint32_t device;    /* index within the grant */
	uint32_t reserved;
};

#ifndef SLUICE_BPF
static_assert(sizeof(struct sluice_launch_event) == 32, "read with one copy");
static_assert(offsetof(struct sluice_launch_event, device) == 24, "named in interpose/compute/probe.h");
#endif

#endif

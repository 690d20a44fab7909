/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A probe (USDT) in our own code: one five-byte nop and a note with its address and arguments. Without a tracer it
 * costs the nop; with one, Linux 6.18 and later replace a nop of this length by a call instead of a trap.
 *
 * The note is version 3 of SystemTap's, which bcc, bpftrace and perf read. It is written here and not by <sys/sdt.h>,
 * which takes its operands from any register, so that every inlined copy of a probe would need a reader of its own; the
 * pointer to the event is pinned to one register instead. Format:
 * https://sourceware.org/systemtap/wiki/UserSpaceProbeImplementation
 */
#ifndef SLUICE_PROBE_H
#define SLUICE_PROBE_H

#include "proto/launch_event.h"

#if defined(__x86_64__)
#define PROBE_REGISTER "r11"
#define PROBE_NOP ".byte 0x0f, 0x1f, 0x44, 0x00, 0x00"
#define PROBE_ARGUMENTS "8@(%%r11) 4@24(%%r11) 8@8(%%r11) 8@16(%%r11)"
#elif defined(__aarch64__)
#define PROBE_REGISTER "x9"
#define PROBE_NOP "nop"
#define PROBE_ARGUMENTS "8@[x9] 4@[x9, 24] 8@[x9, 8] 8@[x9, 16]"
#endif

#ifdef PROBE_NOP
/* Fires `sluice:NAME`; `event` points to the launch. */
#define PROBE(NAME, event)                                                                                             \
	do {                                                                                                           \
		register const struct sluice_launch_event *event_ __asm__(PROBE_REGISTER) = (event);                   \
                                                                                                                       \
		__asm__ volatile("990: " PROBE_NOP "\n"                                                                \
		                 ".pushsection .note.stapsdt, \"\", \"note\"\n"                                        \
		                 ".balign 4\n"                                                                         \
		                 ".4byte 992f - 991f, 994f - 993f, 3\n"                                                \
		                 "991: .asciz \"stapsdt\"\n"                                                           \
		                 "992: .balign 4\n"                                                                    \
		                 "993: .8byte 990b, _.stapsdt.base, 0\n"                                               \
		                 ".asciz \"" SLUICE_PROBE_PROVIDER "\", \"" NAME "\", \"" PROBE_ARGUMENTS "\"\n"       \
		                 "994: .balign 4\n"                                                                    \
		                 ".popsection\n"                                                                       \
		                 ".ifndef _.stapsdt.base\n"                                                            \
		                 ".pushsection .stapsdt.base, \"aG\", \"progbits\", .stapsdt.base, comdat\n"           \
		                 ".weak _.stapsdt.base\n"                                                              \
		                 ".hidden _.stapsdt.base\n"                                                            \
		                 "_.stapsdt.base: .space 1\n"                                                          \
		                 ".size _.stapsdt.base, 1\n"                                                           \
		                 ".popsection\n"                                                                       \
		                 ".endif\n"                                                                            \
		                 :                                                                                     \
		                 : "r"(event_), "m"(*event_));                                                         \
	} while (0)
#else
#define PROBE(NAME, event) ((void)(event)) /* no probes on this architecture: launches are counted, not traced */
#endif

#endif

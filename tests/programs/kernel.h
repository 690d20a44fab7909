/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The module that the C test programs load. The simulated driver takes any image and runs its own `sim_busy_ns`; on a
 * real card this PTX is compiled: a chain of `n` dependent multiplications per thread, whose GPU time grows with `n`
 * and does not pass while another context has the card (a clock would).
 */
#ifndef TESTS_KERNEL_H
#define TESTS_KERNEL_H

static const char kernel_image[] = ".version 6.4\n"
				   ".target sm_70\n"
				   ".address_size 64\n"
				   ".visible .entry sim_busy_ns(.param .u64 n)\n"
				   "{\n"
				   "	.reg .pred %p;\n"
				   "	.reg .b32 %r<3>;\n"
				   "	.reg .b64 %rd<3>;\n"
				   "	ld.param.u64 %rd1, [n];\n"
				   "	mov.u64 %rd2, 0;\n"
				   "	mov.u32 %r1, %tid.x;\n"
				   "again:\n"
				   "	mad.lo.u32 %r1, %r1, 1664525, 1013904223;\n"
				   "	add.u64 %rd2, %rd2, 1;\n"
				   "	setp.lt.u64 %p, %rd2, %rd1;\n"
				   "	@%p bra again;\n"
				   "	setp.ne.u32 %p, %r1, 1;\n" /* uses the result, so that no compiler drops it */
				   "	@%p bra out;\n"
				   "	trap;\n"
				   "out:\n"
				   "	ret;\n"
				   "}\n";

#endif

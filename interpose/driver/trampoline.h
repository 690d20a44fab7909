/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Assembly of one exported symbol that is forwarded: load the target from a table, jump. An empty entry goes through
 * `slow`, which saves the argument registers, gets the target from trampoline_resolve() and jumps there. It has no
 * stack frame and touches no register of the calling convention, so it works for any signature.
 *
 * A .S file defines the macros of its .def files over TRAMPOLINE (exported) and LAZY (hidden, named lazy_<symbol>),
 * puts the list between TRAMPOLINE_BEGIN and TRAMPOLINE_END, and names the table after itself. The order of the list is
 * the order of the table, and the C side expands the same list to the names.
 */
/* clang-format off */
#ifndef SLUICE_TRAMPOLINE_H
#define SLUICE_TRAMPOLINE_H

#if defined(__x86_64__)

#define TRAMPOLINE_BEGIN                                                                                               \
	.text;                                                                                                         \
	.set trampoline_n, 0

	.macro trampoline_body
	.byte 0xf3, 0x0f, 0x1e, 0xfa /* endbr64, for assemblers without that instruction */
	leaq trampoline_table + 8 * trampoline_n(%rip), %r11
	movq (%r11), %r10
	testq %r10, %r10
	jz trampoline_slow
	jmp *%r10
	.set trampoline_n, trampoline_n + 1
	.endm

#define TRAMPOLINE_END                                                                                                 \
	.local trampoline_table;                                                                                       \
	.comm trampoline_table, 8 * trampoline_n, 16

	.macro trampoline_slow_path
	.p2align 4
trampoline_slow:
	.cfi_startproc
	pushq %rbp
	.cfi_def_cfa_offset 16
	.cfi_offset %rbp, -16
	movq %rsp, %rbp
	.cfi_def_cfa_register %rbp
	andq $-16, %rsp
	subq $192, %rsp
	movq %rdi, (%rsp)
	movq %rsi, 8(%rsp)
	movq %rdx, 16(%rsp)
	movq %rcx, 24(%rsp)
	movq %r8, 32(%rsp)
	movq %r9, 40(%rsp)
	movq %rax, 48(%rsp)
	movups %xmm0, 64(%rsp)
	movups %xmm1, 80(%rsp)
	movups %xmm2, 96(%rsp)
	movups %xmm3, 112(%rsp)
	movups %xmm4, 128(%rsp)
	movups %xmm5, 144(%rsp)
	movups %xmm6, 160(%rsp)
	movups %xmm7, 176(%rsp)
	movq %r11, %rdi
	leaq trampoline_table(%rip), %rsi
	subq %rsi, %rdi
	shrq $3, %rdi
	movq %r11, %rsi
	call trampoline_resolve
	movq %rax, %r10
	movq (%rsp), %rdi
	movq 8(%rsp), %rsi
	movq 16(%rsp), %rdx
	movq 24(%rsp), %rcx
	movq 32(%rsp), %r8
	movq 40(%rsp), %r9
	movq 48(%rsp), %rax
	movups 64(%rsp), %xmm0
	movups 80(%rsp), %xmm1
	movups 96(%rsp), %xmm2
	movups 112(%rsp), %xmm3
	movups 128(%rsp), %xmm4
	movups 144(%rsp), %xmm5
	movups 160(%rsp), %xmm6
	movups 176(%rsp), %xmm7
	movq %rbp, %rsp
	popq %rbp
	.cfi_def_cfa %rsp, 8
	jmp *%r10
	.cfi_endproc
	.endm

#elif defined(__aarch64__)

#define TRAMPOLINE_BEGIN                                                                                               \
	.text;                                                                                                         \
	.set trampoline_n, 0

	.macro trampoline_body
	hint #34 /* bti c */
	adrp x16, trampoline_table + 8 * trampoline_n
	add x16, x16, :lo12:trampoline_table + 8 * trampoline_n
	ldr x17, [x16]
	cbz x17, trampoline_slow
	br x17
	.set trampoline_n, trampoline_n + 1
	.endm

#define TRAMPOLINE_END                                                                                                 \
	.local trampoline_table;                                                                                       \
	.comm trampoline_table, 8 * trampoline_n, 16

	.macro trampoline_slow_path
	.p2align 4
trampoline_slow:
	.cfi_startproc
	stp x29, x30, [sp, #-224]!
	.cfi_def_cfa_offset 224
	.cfi_offset x29, -224
	.cfi_offset x30, -216
	mov x29, sp
	stp x0, x1, [sp, #16]
	stp x2, x3, [sp, #32]
	stp x4, x5, [sp, #48]
	stp x6, x7, [sp, #64]
	str x8, [sp, #80]
	stp q0, q1, [sp, #96]
	stp q2, q3, [sp, #128]
	stp q4, q5, [sp, #160]
	stp q6, q7, [sp, #192]
	adrp x0, trampoline_table
	add x0, x0, :lo12:trampoline_table
	mov x1, x16
	sub x0, x16, x0
	lsr x0, x0, #3
	bl trampoline_resolve
	mov x17, x0
	ldp x0, x1, [sp, #16]
	ldp x2, x3, [sp, #32]
	ldp x4, x5, [sp, #48]
	ldp x6, x7, [sp, #64]
	ldr x8, [sp, #80]
	ldp q0, q1, [sp, #96]
	ldp q2, q3, [sp, #128]
	ldp q4, q5, [sp, #160]
	ldp q6, q7, [sp, #192]
	ldp x29, x30, [sp], #224
	.cfi_def_cfa_offset 0
	br x17
	.cfi_endproc
	.endm

#else
#error "trampolines are written for x86-64 and aarch64"
#endif

	.macro trampoline_exported name
	.globl \name
	.type \name, %function
	.p2align 4
\name:
	trampoline_body
	.size \name, . - \name
	.endm

	.macro trampoline_hidden name
	.globl \name
	.hidden \name
	.type \name, %function
	.p2align 4
\name:
	trampoline_body
	.size \name, . - \name
	.endm

#define TRAMPOLINE(name) trampoline_exported name
#define LAZY(name) trampoline_hidden lazy_##name

	.section .note.GNU-stack, "", %progbits

#endif

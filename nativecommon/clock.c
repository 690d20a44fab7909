/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel maps its clock into each process as a small ELF library (vDSO); libc calls the same function. */
#include "nativecommon/clock.h"

#include <elf.h>
#include <link.h>
#include <stdbool.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#if defined(__aarch64__)
#define VDSO_CLOCK "__kernel_clock_gettime"
#else
#define VDSO_CLOCK "__vdso_clock_gettime"
#endif

typedef int (*clock_fn)(clockid_t, struct timespec *);

static int by_system_call(clockid_t id, struct timespec *ret_time)
{
	return (int)syscall(SYS_clock_gettime, id, ret_time);
}

struct vdso {
	uintptr_t base; /* added to addresses in the file */
	const ElfW(Sym) * symbols;
	const char *names;
	const ElfW(Word) * hash; /* nbucket, nchain: nchain is the number of symbols */
};

static int vdso_read(uintptr_t image, struct vdso *ret_vdso)
{
	const ElfW(Ehdr) *header = (const ElfW(Ehdr) *)image;
	const ElfW(Phdr) *segment = (const ElfW(Phdr) *)(image + header->e_phoff);
	const ElfW(Dyn) *dynamic = NULL;
	int loaded = 0;

	for (unsigned i = 0; i < header->e_phnum; i++) {
		if (segment[i].p_type == PT_LOAD && !loaded) {
			ret_vdso->base = image + segment[i].p_offset - segment[i].p_vaddr;
			loaded = 1;
		} else if (segment[i].p_type == PT_DYNAMIC) {
			dynamic = (const ElfW(Dyn) *)(image + segment[i].p_offset);
		}
	}
	for (; loaded && dynamic && dynamic->d_tag != DT_NULL; dynamic++) {
		uintptr_t at = ret_vdso->base + dynamic->d_un.d_ptr;

		if (dynamic->d_tag == DT_SYMTAB)
			ret_vdso->symbols = (const ElfW(Sym) *)at;
		else if (dynamic->d_tag == DT_STRTAB)
			ret_vdso->names = (const char *)at;
		else if (dynamic->d_tag == DT_HASH)
			ret_vdso->hash = (const ElfW(Word) *)at;
	}
	return ret_vdso->symbols && ret_vdso->names && ret_vdso->hash;
}

/* Never NULL. Where the kernel's vDSO has only a GNU hash table (some since 6.12), the clock is read by system call. */
static clock_fn find(void)
{
	uintptr_t image = getauxval(AT_SYSINFO_EHDR);
	struct vdso vdso = { 0 };
	union { /* a data pointer is no function pointer to ISO C */
		uintptr_t address;
		clock_fn call;
	} found = { .call = by_system_call };

	if (!image || !vdso_read(image, &vdso))
		return by_system_call;
	for (ElfW(Word) i = 0; i < vdso.hash[1]; i++)
		if (vdso.symbols[i].st_shndx != SHN_UNDEF &&
		    strcmp(vdso.names + vdso.symbols[i].st_name, VDSO_CLOCK) == 0)
			found.address = vdso.base + vdso.symbols[i].st_value;
	return found.call;
}

#define BEHIND_NS UINT64_C(1000000000) /* more than processes can differ by reading the clock at different moments */

static uint64_t behind_ns;

static uint64_t kernel_ns(void)
{
	static clock_fn kernel;
	clock_fn call = __atomic_load_n(&kernel, __ATOMIC_RELAXED);
	struct timespec t;

	if (__builtin_expect(!call, 0)) {
		call = find(); /* racing threads find the same function */
		__atomic_store_n(&kernel, call, __ATOMIC_RELAXED);
	}
	if (call(CLOCK_MONOTONIC, &t) != 0 && by_system_call(CLOCK_MONOTONIC, &t) != 0)
		return 0;
	return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

uint64_t clock_ns(void)
{
	return kernel_ns() + __atomic_load_n(&behind_ns, __ATOMIC_RELAXED);
}

/* The sooner after a heartbeat we read it, the smaller the error, so that lease windows match too. Never steps back. */
void clock_follow(uint64_t written_ns)
{
	uint64_t now_ns = kernel_ns(), behind = __atomic_load_n(&behind_ns, __ATOMIC_RELAXED);

	if (written_ns <= now_ns + behind || (behind == 0 && written_ns - now_ns <= BEHIND_NS))
		return;
	while (behind < written_ns - now_ns && !__atomic_compare_exchange_n(&behind_ns, &behind, written_ns - now_ns,
	                                                                    true, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		;
}

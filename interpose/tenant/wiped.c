/* SPDX-License-Identifier: Apache-2.0 */
/* Separate pages with MADV_WIPEONFORK: a child has them at the same address, filled with zeros. */
#include "interpose/tenant/moves.h"

#include <stdbool.h>
#include <sys/mman.h>

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

void *wiped_memory(void **at, size_t bytes)
{
	void *page = __atomic_load_n(at, __ATOMIC_ACQUIRE), *expected = NULL;

	if (page)
		return page;
	bytes = (bytes + 4095) & ~(size_t)4095;
	page = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (page == MAP_FAILED)
		return NULL;
	/* Linux 4.14; without it a child would write into its parent's slot, so the process gets no GPU */
	if (madvise(page, bytes, MADV_WIPEONFORK) != 0 ||
	    !__atomic_compare_exchange_n(at, &expected, page, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
		munmap(page, bytes);
		return expected; /* the winner's, or NULL */
	}
	return page;
}

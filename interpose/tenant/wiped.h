/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that a forked child finds zeroed, however it was forked: for state that belongs to one process and not to its
 * children. */
#ifndef SLUICE_WIPED_H
#define SLUICE_WIPED_H

#include <stddef.h>

/* `bytes` of it, published at *at by the first thread that calls and never freed; NULL: no memory, or a kernel before
 * Linux 4.14. */
void *wiped_memory(void **at, size_t bytes);

#endif

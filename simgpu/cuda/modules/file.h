/* SPDX-License-Identifier: Apache-2.0 */
/* Files that a program names: modules and what is to be linked. */
#ifndef SIM_FILE_H
#define SIM_FILE_H

#include <stddef.h>

/* A whole file, with a 0 behind it, to be freed. NULL = not to be read. */
void *sim_file_bytes(const char *path, size_t *ret_bytes);

#endif

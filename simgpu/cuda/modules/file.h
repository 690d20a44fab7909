/* SPDX-License-Identifier: Apache-2.0 */
/* Files that a program names: modules, and inputs of the linker. */
#ifndef SIM_FILE_H
#define SIM_FILE_H

#include <stddef.h>

/* A whole file, followed by a 0 byte, to be freed. NULL = unreadable. */
void *sim_file_bytes(const char *path, size_t *ret_bytes);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a file that a program names. */
#include "simgpu/cuda/modules/modules.h"

#include <stdio.h>
#include <stdlib.h>

void *sim_file_bytes(const char *path, size_t *ret_bytes)
{
	FILE *file = fopen(path, "rbe");
	char *bytes = NULL;
	size_t used = 0, room = 0;

	if (!file)
		return NULL;
	do {
		if (used + 1 >= room) {
			char *grown = realloc(bytes, room = room ? 2 * room : 65536);

			if (!grown)
				break;
			bytes = grown;
		}
		used += fread(bytes + used, 1, room - used - 1, file);
	} while (!feof(file) && !ferror(file));
	fclose(file);
	if (bytes)
		bytes[used] = 0;
	*ret_bytes = used;
	return bytes;
}

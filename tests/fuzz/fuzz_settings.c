/* SPDX-License-Identifier: Apache-2.0 */
/* Any text as SLUICE_GRANT_DIR: it is taken whole when it is an absolute path that fits, and not at all otherwise. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "interpose/settings.c"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = malloc(size + 1);
	const char *dir;
	size_t length;

	if (!text)
		abort();
	memcpy(text, data, size);
	text[size] = 0;
	length = strlen(text);
	memset(dir_from_environment, 0, sizeof(dir_from_environment));
	if (setenv("SLUICE_GRANT_DIR", text, 1) != 0)
		abort();
	settings_read();
	dir = settings_grant_dir();
	if (length > 0 && length < sizeof(dir_from_environment) && text[0] == '/') {
		if (!dir || strcmp(dir, text) != 0)
			abort();
	} else if (dir) {
		abort();
	}
	free(text);
	return 0;
}

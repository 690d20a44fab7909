/* SPDX-License-Identifier: Apache-2.0 */
/* Any text as SLUICE_GRANT_DIR: it is used whole when it is an absolute path that fits, and ignored otherwise. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "interpose/attach/settings.c"

#define NAME "SLUICE_GRANT_DIR="

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static char variable[1024] = NAME; /* setenv() would leak every value that it ever had */
	char *text = variable + sizeof(NAME) - 1;
	const char *dir;
	size_t length;

	if (size >= sizeof(variable) - sizeof(NAME))
		return 0;
	memcpy(text, data, size);
	text[size] = 0;
	length = strlen(text);
	memset(dir_from_environment, 0, sizeof(dir_from_environment));
	if (putenv(variable) != 0)
		abort();
	settings_read();
	dir = settings_grant_dir();
	if (length > 0 && length < sizeof(dir_from_environment) && text[0] == '/') {
		if (!dir || strcmp(dir, text) != 0)
			abort();
	} else if (dir) {
		abort();
	}
	return 0;
}

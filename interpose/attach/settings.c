/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Location of the grant: the fixed directory if there is one, else SLUICE_GRANT_DIR, read once before main().
 *
 * The fixed place wins, so that a program in a container cannot point us at a region of its own making. Nothing else
 * comes from the environment, limits least of all: they are in the read-only page.
 */
#include "interpose/attach/places.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "interpose/attach/region.h"

#define FIXED_DIR "/run/sluice/grant"

static char dir_from_environment[256]; /* the daemon's paths have about 60 characters */

__attribute__((constructor)) static void settings_read(void)
{
	const char *dir = getenv("SLUICE_GRANT_DIR");
	size_t length = dir ? strlen(dir) : 0;

	if (length > 0 && length < sizeof(dir_from_environment) && dir[0] == '/')
		memcpy(dir_from_environment, dir, length + 1);
}

const char *settings_grant_dir(void)
{
	/* test the file, not the directory: an image may ship an empty /run/sluice */
	if (access(FIXED_DIR "/" SLUICE_POLICY_FILE, F_OK) == 0)
		return FIXED_DIR;
	return dir_from_environment[0] ? dir_from_environment : NULL;
}

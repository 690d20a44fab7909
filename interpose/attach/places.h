/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SLUICE_PLACES_H
#define SLUICE_PLACES_H

/* The directory in which to look for this process's grant; it need not exist. NULL: this process has none. */
const char *settings_grant_dir(void);

/* dlopen the real library behind this one: only `path` if it is given, otherwise `soname` wherever the loader would
 * search, skipping our own copies. NULL: not found. */
void *reallib_open(const char *path, const char *soname);
/* The same for a library in whose place another of ours stands, not the one that calls. */
void *reallib_open_other(const char *path, const char *soname);

#endif

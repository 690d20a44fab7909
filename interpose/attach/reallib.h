/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SLUICE_REALLIB_H
#define SLUICE_REALLIB_H

/* dlopen the real library behind us: `path` if given, and then nothing else; otherwise `soname` wherever the loader
 * would look for it, passing over ourselves. NULL: there is none. */
void *reallib_open(const char *path, const char *soname);

#endif

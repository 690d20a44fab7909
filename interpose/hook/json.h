/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds one value in a JSON text, without making anything of the rest: for a program that needs three strings and must
 * not bring a library. Lenient about what it passes over (the runtime wrote it and has read it), never past the NUL.
 */
#pragma once

/* Where the value of `key` begins in the object that begins at `json`; NULL: no object, no such key, not closed. */
const char *json_member(const char *json, const char *key);

/* The string that begins at `json`, decoded, for free(); NULL: no string, a bad escape, U+0000, no memory. */
char *json_text(const char *json);

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds one value in a JSON text and skips the rest: for a program that needs three strings and must not bring a
 * library. Lenient about the parts it skips (the runtime wrote and has read them); never reads past the NUL.
 */
#pragma once

/* The start of the value of `key` in the object at `json`; NULL: no object, no such key, not closed. */
const char *json_member(const char *json, const char *key);

/* The string at `json`, decoded, to be freed with free(); NULL: no string, a bad escape, U+0000, out of memory. */
char *json_text(const char *json);

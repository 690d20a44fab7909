/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inputs that the container hook reads as root: the runtime's state and config.json, and the image's own
 * /etc/ld.so.preload.
 *
 * Bit 0 of the first byte selects the reader, the rest is the text. JSON: a found value lies within the text and
 * belongs to the key; a decoded string that is encoded again decodes to the same. The list: compared with a second
 * implementation of glibc's rule, written differently.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define main hook_main
int hook_main(int argc, char **argv);
#include "interpose/hook/container_hook.c"
#undef main
#include "interpose/hook/json.c"

#define OURS "/run/sluice/lib/libsluice.so"
#define MOST_NAMES 4096

static void expect(int truth)
{
	if (!truth)
		abort();
}

/* Exactly of the size that the hook's read_all() promises: a sanitizer finds any read or write beyond it. */
static char *text_of(const uint8_t *data, size_t size, size_t room)
{
	char *text = malloc(size + 1 + room);

	expect(text != NULL);
	if (size)
		memcpy(text, data, size);
	text[size] = '\0';
	return text;
}

/* --- the list ----------------------------------------------------------------------------------------------------- */

static bool ends_name(char c)
{
	return c == ' ' || c == '\t' || c == '\n' || c == ':';
}

/* Character by character, into a second buffer; normalize() works by words, in place. */
static void as_glibc_reads_it(const char *from, char *to)
{
	char *name = to;
	bool comment = false;

	for (;; from++) {
		bool last = *from == '\0';

		if (*from == '#')
			comment = true;
		else if (*from == '\n')
			comment = false;
		if (!last && !comment && !ends_name(*from)) {
			*to++ = *from;
			continue;
		}
		if (to > name) {
			if ((size_t)(to - name) == strlen(OURS) && memcmp(name, OURS, strlen(OURS)) == 0) {
				to = name;
			} else {
				*to++ = '\n';
				name = to;
			}
		}
		if (last)
			break;
	}
	*to = '\0';
}

static void read_lists(const uint8_t *data, size_t size)
{
	char *list = text_of(data, size, 1), *wanted = text_of(data, size, 1);
	char *given = text_of(data, size, 0);

	as_glibc_reads_it(given, wanted);
	normalize(list, OURS);
	expect(strcmp(list, wanted) == 0);
	normalize(list, OURS); /* as at the next start of the same container */
	expect(strcmp(list, wanted) == 0);
	free(given);
	free(wanted);
	free(list);
}

/* --- JSON --------------------------------------------------------------------------------------------------------- */

static bool is_space(char c)
{
	return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/* The key and a colon precede `at`. */
static void expect_key(const char *json, const char *at, const char *key)
{
	size_t length = strlen(key);

	expect(at > json && at <= json + strlen(json));
	do
		at--;
	while (is_space(*at));
	expect(*at == ':');
	do
		at--;
	while (is_space(*at));
	expect(*at == '"' && (size_t)(at - json) > length && memcmp(at - length, key, length) == 0 &&
	       at[-(ptrdiff_t)length - 1] == '"');
}

static void expect_same_again(const char *text)
{
	size_t length = strlen(text);
	char *written = malloc(6 * length + 3), *to = written, *again;
	static const char digits[] = "0123456789abcdef";

	expect(written != NULL);
	*to++ = '"';
	for (size_t i = 0; i < length; i++) {
		uint8_t c = (uint8_t)text[i];

		if (c < 0x20 || c == '"' || c == '\\') {
			memcpy(to, "\\u00", 4);
			to[4] = digits[c >> 4];
			to[5] = digits[c & 15];
			to += 6;
		} else {
			*to++ = (char)c;
		}
	}
	*to++ = '"';
	*to = '\0';
	again = json_text(written);
	expect(again && strcmp(again, text) == 0);
	free(again);
	free(written);
}

static void read_text(const char *json, const char *key)
{
	const char *value = json_member(json, key);
	char *text;

	if (!value)
		return;
	expect_key(json, value, key);
	text = json_text(value);
	if (text) {
		expect(*value == '"' && strlen(text) <= strlen(value));
		expect_same_again(text);
	}
	free(text);
}

static void read_json(const uint8_t *data, size_t size)
{
	char *json = text_of(data, size, 0);
	const char *inside;

	read_text(json, "bundle");
	inside = json_member(json, "root");
	if (inside)
		read_text(inside, "path");
	inside = json_member(json, "linux");
	if (inside)
		read_text(inside, "mountLabel");
	free(json_text(json));
	free(json);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (!size)
		return 0;
	if (data[0] & 1)
		read_lists(data + 1, size - 1);
	else
		read_json(data + 1, size - 1);
	return 0;
}

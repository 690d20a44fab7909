/* SPDX-License-Identifier: Apache-2.0 */
/* Source: RFC 8259. */
#include "interpose/hook/json.h"

#include <stdlib.h>
#include <string.h>

static const char *skip_space(const char *at)
{
	return at + strspn(at, " \t\r\n");
}

/* Returns the position after the closing quote of the string at `at`. */
static const char *skip_string(const char *at)
{
	for (at++; *at != '"'; at++) {
		if (*at == '\\')
			at++;
		if (*at == '\0')
			return NULL;
	}
	return at + 1;
}

/* Returns the position after the value at `at`: strings are skipped whole, brackets are counted. */
static const char *skip_value(const char *at)
{
	size_t depth = 0;

	do {
		at = skip_space(at);
		if (*at == '"') {
			at = skip_string(at);
			if (!at)
				return NULL;
		} else if (*at == '{' || *at == '[') {
			depth++;
			at++;
		} else if (*at == '}' || *at == ']') {
			if (depth == 0)
				return NULL;
			depth--;
			at++;
		} else if (depth > 0 && (*at == ',' || *at == ':')) {
			at++;
		} else {
			size_t length = strcspn(at, " \t\r\n\"{}[],:");

			if (length == 0)
				return NULL;
			at += length;
		}
	} while (depth > 0);
	return at;
}

const char *json_member(const char *json, const char *key)
{
	if (!json)
		return NULL;
	const char *at = skip_space(json);

	if (*at != '{')
		return NULL;
	for (at = skip_space(at + 1); *at == '"'; at = skip_space(at + 1)) {
		const char *name = at;

		at = skip_string(at);
		if (!at)
			return NULL;
		size_t length = (size_t)(at - name) - 2;

		at = skip_space(at);
		if (*at != ':')
			return NULL;
		at = skip_space(at + 1);
		if (length == strlen(key) && memcmp(name + 1, key, length) == 0)
			return at;
		at = skip_value(at);
		if (!at)
			return NULL;
		at = skip_space(at);
		if (*at != ',')
			return NULL;
	}
	return NULL;
}

static int hex4(const char *at)
{
	int value = 0;

	for (int i = 0; i < 4; i++) {
		char c = at[i];
		int digit = c >= '0' && c <= '9'   ? c - '0'
		            : c >= 'a' && c <= 'f' ? c - 'a' + 10
		            : c >= 'A' && c <= 'F' ? c - 'A' + 10
		                                   : -1;

		if (digit < 0) /* includes the NUL */
			return -1;
		value = value << 4 | digit;
	}
	return value;
}

static char *put_utf8(char *to, unsigned code)
{
	if (code < 0x80) {
		*to++ = (char)code;
	} else if (code < 0x800) {
		*to++ = (char)(0xc0 | code >> 6);
		*to++ = (char)(0x80 | (code & 0x3f));
	} else if (code < 0x10000) {
		*to++ = (char)(0xe0 | code >> 12);
		*to++ = (char)(0x80 | (code >> 6 & 0x3f));
		*to++ = (char)(0x80 | (code & 0x3f));
	} else {
		*to++ = (char)(0xf0 | code >> 18);
		*to++ = (char)(0x80 | (code >> 12 & 0x3f));
		*to++ = (char)(0x80 | (code >> 6 & 0x3f));
		*to++ = (char)(0x80 | (code & 0x3f));
	}
	return to;
}

/* `at` is after the u. Returns the position after the escape: one unit, or a surrogate pair. */
static const char *take_unicode(const char *at, char **to)
{
	int unit = hex4(at);

	if (unit <= 0)
		return NULL;
	at += 4;
	if (unit >= 0xd800 && unit < 0xdc00) {
		int low = at[0] == '\\' && at[1] == 'u' ? hex4(at + 2) : -1;

		if (low < 0xdc00 || low >= 0xe000)
			return NULL;
		unit = 0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00);
		at += 6;
	} else if (unit >= 0xdc00 && unit < 0xe000) {
		return NULL;
	}
	*to = put_utf8(*to, (unsigned)unit);
	return at;
}

char *json_text(const char *json)
{
	static const char from[] = "\"\\/bfnrt";
	static const char into[] = "\"\\/\b\f\n\r\t";

	if (!json || *json != '"')
		return NULL;
	const char *end = skip_string(json);

	if (!end)
		return NULL;
	char *text = malloc((size_t)(end - json)); /* an escape is longer than its decoded form */
	char *to = text;

	for (const char *at = json + 1; text && at < end - 1;) {
		if (*at != '\\') {
			*to++ = *at++;
			continue;
		}
		const char *found = at[1] ? strchr(from, at[1]) : NULL;

		if (found) {
			*to++ = into[found - from];
			at += 2;
			continue;
		}
		at = at[1] == 'u' ? take_unicode(at + 2, &to) : NULL;
		if (!at) {
			free(text);
			return NULL;
		}
	}
	if (text)
		*to = '\0';
	return text;
}

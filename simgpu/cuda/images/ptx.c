/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PTX: the target, each `.entry` with its parameters and bounds, and the variables of the module. A reader of words, no
 * compiler: bodies are skipped, except for the shared memory that they declare.
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "simgpu/cuda/images/images.h"

struct reader {
	const char *at, *end;
	const char *word; /* the word read last */
	size_t length;
};

/* The next word: a name with its dots, percent and dollar signs, or one other character. false at the end. */
static bool next(struct reader *r)
{
	for (;;) {
		while (r->at < r->end && isspace((unsigned char)*r->at))
			r->at++;
		if (r->end - r->at >= 2 && r->at[0] == '/' && r->at[1] == '/') {
			while (r->at < r->end && *r->at != '\n')
				r->at++;
		} else if (r->end - r->at >= 2 && r->at[0] == '/' && r->at[1] == '*') {
			const char *close = memmem(r->at + 2, (size_t)(r->end - r->at - 2), "*/", 2);

			r->at = close ? close + 2 : r->end;
		} else {
			break;
		}
	}
	r->word = r->at;
	while (r->at < r->end && (isalnum((unsigned char)*r->at) || strchr("._$%", *r->at)))
		r->at++;
	if (r->at == r->word && r->at < r->end)
		r->at++;
	r->length = (size_t)(r->at - r->word);
	return r->length > 0;
}

static bool is(const struct reader *r, const char *word)
{
	return strlen(word) == r->length && memcmp(r->word, word, r->length) == 0;
}

/* `.f32` is 4; the caller multiplies by `.v4` counts; 0 = not a type. */
static uint32_t type_bytes(const struct reader *r)
{
	if (r->length < 3 || r->word[0] != '.' || !strchr("bsuf", r->word[1]))
		return 0;
	return (uint32_t)strtoul(r->word + 2, NULL, 10) / 8;
}

/* Reads from a state space (.param, .global …) to its end: `.align 4 .b8 name[400]`. */
struct declaration {
	const char *name;
	size_t length;
	uint64_t bytes;
	uint32_t align;
	bool managed;
};

static bool declaration(struct reader *r, struct declaration *ret)
{
	uint32_t element = 0, vector = 1;
	uint64_t count = 1;

	*ret = (struct declaration){ .align = 0 };
	while (next(r)) {
		if (is(r, ".align")) {
			next(r);
			ret->align = (uint32_t)strtoul(r->word, NULL, 10);
		} else if (is(r, ".managed")) {
			ret->managed = true;
		} else if (is(r, ".v2") || is(r, ".v4")) {
			vector = (uint32_t)(r->word[2] - '0');
		} else if (type_bytes(r) && !element) {
			element = type_bytes(r);
		} else if (is(r, "[")) {
			next(r);
			count *= is(r, "]") ? 1 : strtoull(r->word, NULL, 0);
		} else if (is(r, ",") || is(r, ";") || is(r, "=") || (is(r, ")") && ret->name)) {
			break; /* the bracket of `.attribute(.managed)` comes before the name */
		} else if ((isalpha((unsigned char)*r->word) || strchr("_$%", *r->word)) && !ret->name) {
			ret->name = r->word;
			ret->length = r->length;
		}
	}
	ret->bytes = element * vector * count;
	if (ret->align < element)
		ret->align = element;
	return ret->name != NULL;
}

static void skip_initialiser(struct reader *r)
{
	while (!is(r, ";") && next(r))
		;
}

static bool read_params(struct reader *r, struct sim_image_kernel *k)
{
	uint64_t offset = 0;
	struct declaration d;

	for (uint32_t index = 0; next(r) && !is(r, ")");) {
		if (!is(r, ".param") || !declaration(r, &d))
			continue;
		offset = d.align ? (offset + d.align - 1) / d.align * d.align : offset;
		if (!sim_image_param_add(k, index++, (uint32_t)offset, (uint32_t)d.bytes))
			return false;
		offset += d.bytes;
		if (is(r, ")"))
			break;
	}
	return true;
}

/* Reads from the end of the parameters to the end of the body. */
static void read_body(struct reader *r, struct sim_image_kernel *k)
{
	unsigned depth = 0;
	struct declaration d;

	while (next(r)) {
		if (is(r, "{")) {
			depth++;
		} else if (is(r, "}")) {
			if (depth <= 1)
				return;
			depth--;
		} else if (is(r, ";") && depth == 0) {
			return; /* a declaration without a body */
		} else if ((is(r, ".maxntid") || is(r, ".reqntid")) && depth == 0) {
			uint32_t threads = 1;

			do {
				next(r);
				threads *= (uint32_t)strtoul(r->word, NULL, 10);
				next(r);
			} while (is(r, ","));
			k->threads_most = threads;
			r->at = r->word; /* the next word is read again */
		} else if (is(r, ".shared") && declaration(r, &d)) {
			k->shared_bytes += (uint32_t)d.bytes;
		}
	}
}

static bool read_entry(struct sim_image *image, struct reader *r)
{
	if (!next(r))
		return true;
	struct sim_image_kernel *k = sim_image_kernel_add(image, r->word, r->length);

	if (!k)
		return false;
	if (next(r) && is(r, "(")) {
		if (!read_params(r, k))
			return false;
	} else {
		r->at = r->word;
	}
	read_body(r, k);
	return true;
}

bool sim_image_ptx(struct sim_image *image, const char *text, size_t bytes)
{
	struct reader r = { .at = text, .end = text + bytes };
	struct declaration d;

	while (next(&r)) {
		if (is(&r, ".target") && next(&r)) {
			if (r.length > 3 && memcmp(r.word, "sm_", 3) == 0)
				image->architecture = (uint32_t)strtoul(r.word + 3, NULL, 10);
		} else if (is(&r, ".entry")) {
			if (!read_entry(image, &r))
				return false;
		} else if (is(&r, ".func")) {
			struct sim_image_kernel skipped = { 0 };

			read_body(&r, &skipped);
		} else if (is(&r, ".global") || is(&r, ".const")) {
			if (!declaration(&r, &d))
				continue;
			struct sim_image_variable *v = sim_image_variable_add(image, d.name, d.length, d.bytes);

			if (!v)
				return false;
			v->managed = d.managed;
			skip_initialiser(&r);
		}
	}
	return true;
}

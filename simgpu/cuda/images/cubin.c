/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cubins. Kernels are the function symbols marked as entries; `.nv.info` gives registers, `.nv.info.NAME` parameters
 * and bounds, the sizes of `.nv.shared.NAME` and `.nv.constant0.NAME` shared and constant memory. Variables are the
 * objects in `.nv.global`, `.nv.global.init` and the constant bank that programs write to.
 */
#include <elf.h>
#include <stdlib.h>
#include <string.h>

#include "simgpu/cuda/images/images.h"

enum {
	STO_ENTRY = 0x10,
	STO_MANAGED = 0x04,
	INFO_SIZED = 4, /* an attribute with a size, followed by so many bytes */
	INFO_MAX_THREADS = 0x05,
	INFO_PARAM = 0x17,
	INFO_FRAME_SIZE = 0x11,
	INFO_REGISTERS = 0x2f,
};

struct elf {
	const uint8_t *file;
	size_t bytes;
	const Elf64_Shdr *section;
	unsigned sections;
	const char *section_names;
	const Elf64_Sym *symbol;
	size_t symbols;
	const char *symbol_names;
};

static const char *section_name(const struct elf *e, const Elf64_Shdr *s)
{
	return e->section_names + s->sh_name;
}

static const Elf64_Shdr *section_called(const struct elf *e, const char *prefix, const char *name)
{
	size_t length = strlen(prefix);

	for (unsigned i = 0; i < e->sections; i++) {
		const char *called = section_name(e, &e->section[i]);

		if (strncmp(called, prefix, length) == 0 && strcmp(called + length, name) == 0)
			return &e->section[i];
	}
	return NULL;
}

/* Reads one attribute of an info section; returns the start of the next one. */
static const uint8_t *info_next(const uint8_t *at, const uint8_t *end, uint8_t *ret_id, const uint32_t **ret_words,
                                unsigned *ret_count)
{
	uint16_t bytes = 0;

	memcpy(&bytes, at + 2, sizeof(bytes));
	*ret_id = at[1];
	*ret_words = (const void *)(at + 4);
	*ret_count = at[0] == INFO_SIZED && bytes <= end - at - 4 ? bytes / 4u : 0;
	return at + 4 + (at[0] == INFO_SIZED ? bytes : 0);
}

static bool read_kernel_info(struct sim_image_kernel *k, const struct elf *e)
{
	const Elf64_Shdr *s = section_called(e, ".nv.info.", k->name);

	if (!s)
		return true;
	const uint8_t *at = e->file + s->sh_offset, *end = at + s->sh_size;

	while (at + 4 <= end) {
		const uint32_t *word;
		unsigned count;
		uint8_t id;

		at = info_next(at, end, &id, &word, &count);
		if (id == INFO_PARAM && count == 3 &&
		    !sim_image_param_add(k, word[1] & 0xffff, word[1] >> 16, word[2] >> 18))
			return false;
		if (id == INFO_MAX_THREADS && count == 3)
			k->threads_most = word[0] * word[1] * word[2];
	}
	return true;
}

/* The attributes of all kernels in one section: (symbol, value). */
static void read_common_info(struct sim_image *image, const struct elf *e)
{
	const Elf64_Shdr *s = section_called(e, ".nv.info", "");

	if (!s)
		return;
	const uint8_t *at = e->file + s->sh_offset, *end = at + s->sh_size;

	while (at + 4 <= end) {
		const uint32_t *word;
		unsigned count;
		uint8_t id;

		at = info_next(at, end, &id, &word, &count);
		if ((id != INFO_REGISTERS && id != INFO_FRAME_SIZE) || count != 2 || word[0] >= e->symbols)
			continue;
		const char *name = e->symbol_names + e->symbol[word[0]].st_name;

		for (struct sim_image_kernel *k = image->kernels; k; k = k->next) {
			if (strcmp(k->name, name) != 0)
				continue;
			if (id == INFO_REGISTERS)
				k->registers = word[1];
			else
				k->local_bytes = word[1];
		}
	}
}

static bool read_kernel(struct sim_image *image, const struct elf *e, const char *name)
{
	struct sim_image_kernel *k = sim_image_kernel_add(image, name, strlen(name));
	const Elf64_Shdr *shared = section_called(e, ".nv.shared.", name);
	const Elf64_Shdr *constants = section_called(e, ".nv.constant2.", name);

	if (!k)
		return false;
	k->shared_bytes = shared ? (uint32_t)shared->sh_size : 0;
	k->const_bytes = constants ? (uint32_t)constants->sh_size : 0;
	/* From Hopper on a block's first 1,024 bytes belong to the system, and are counted in the section. */
	if (k->shared_bytes >= 1024 && image->architecture >= 90)
		k->shared_bytes -= 1024;
	return read_kernel_info(k, e);
}

static bool read_variable(struct sim_image *image, const struct elf *e, const Elf64_Sym *symbol)
{
	const Elf64_Shdr *s = &e->section[symbol->st_shndx];
	const char *name = e->symbol_names + symbol->st_name, *where = section_name(e, s);

	if (strncmp(where, ".nv.global", 10) != 0 && strcmp(where, ".nv.constant3") != 0)
		return true;
	struct sim_image_variable *v = sim_image_variable_add(image, name, strlen(name), symbol->st_size);

	if (!v)
		return false;
	v->managed = symbol->st_other & STO_MANAGED;
	if (s->sh_type == SHT_NOBITS || symbol->st_value + symbol->st_size > s->sh_size)
		return true;
	v->initial = malloc(symbol->st_size ? symbol->st_size : 1);
	if (v->initial)
		memcpy(v->initial, e->file + s->sh_offset + symbol->st_value, symbol->st_size);
	return v->initial != NULL;
}

/* SM in the lowest byte up to version 7 of the format, in the second one from version 8. */
static uint32_t architecture(const Elf64_Ehdr *h)
{
	return h->e_ident[EI_ABIVERSION] >= 8 ? h->e_flags >> 8 & 0xff : h->e_flags & 0xff;
}

bool sim_image_elf(struct sim_image *image, const uint8_t *file, size_t bytes)
{
	const Elf64_Ehdr *h = (const void *)file;
	struct elf e = { .file = file, .bytes = bytes };

	if (bytes < sizeof(*h) || h->e_ident[EI_CLASS] != ELFCLASS64 || h->e_shstrndx >= h->e_shnum ||
	    h->e_shoff + (size_t)h->e_shnum * sizeof(Elf64_Shdr) > bytes) {
		image->opaque = true;
		return true;
	}
	image->architecture = architecture(h);
	e.section = (const void *)(file + h->e_shoff);
	e.sections = h->e_shnum;
	e.section_names = (const char *)file + e.section[h->e_shstrndx].sh_offset;
	for (unsigned i = 0; i < e.sections; i++) {
		if (e.section[i].sh_type != SHT_SYMTAB || e.section[i].sh_link >= e.sections)
			continue;
		e.symbol = (const void *)(file + e.section[i].sh_offset);
		e.symbols = e.section[i].sh_size / sizeof(Elf64_Sym);
		e.symbol_names = (const char *)file + e.section[e.section[i].sh_link].sh_offset;
	}
	for (size_t i = 0; i < e.symbols; i++) {
		const Elf64_Sym *s = &e.symbol[i];
		bool fine = true;

		if (s->st_shndx == SHN_UNDEF || s->st_shndx >= e.sections)
			continue;
		if (ELF64_ST_TYPE(s->st_info) == STT_FUNC && (s->st_other & STO_ENTRY))
			fine = read_kernel(image, &e, e.symbol_names + s->st_name);
		else if (ELF64_ST_TYPE(s->st_info) == STT_OBJECT)
			fine = read_variable(image, &e, s);
		if (!fine)
			return false;
	}
	read_common_info(image, &e);
	return true;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Code images: detects their kind, and chooses from a fat binary the entry that the driver would choose. */
#include "simgpu/cuda/images/images.h"

#include <elf.h>
#include <stdlib.h>
#include <string.h>

#define WRAPPER UINT32_C(0x466243b1) /* the wrapper that a compiled program passes: points to the fat binary */

struct wrapper {
	uint32_t magic, version;
	const void *fat;
	const void *file;
};

/* --- fat binaries ------------------------------------------------------------------------------------------------- */

/* Code of one generation runs on its later members; architecture-specific code (sm_90a) is not distinguished. */
static bool binary_runs(uint32_t architecture, uint32_t device)
{
	return device == 0 || architecture == 0 ||
	       (architecture / 10 == device / 10 && architecture % 10 <= device % 10);
}

/* The driver's preference for this entry; 0 = unusable. Binaries before PTX, the nearest first. */
static uint32_t worth(const struct sim_fat_entry *e, uint32_t device)
{
	if (e->kind == SIM_FAT_ELF)
		return binary_runs(e->architecture, device) ? 1000 + e->architecture : 0;
	return e->kind == SIM_FAT_PTX && (device == 0 || e->architecture <= device) ? 1 + e->architecture : 0;
}

static bool read_entry(struct sim_image *image, const struct sim_fat_entry *e)
{
	const uint8_t *payload = (const uint8_t *)e + e->header_bytes;

	image->ptx = e->kind == SIM_FAT_PTX;
	if (e->flags & SIM_FAT_COMPRESSED) {
		image->opaque = true;
		return true;
	}
	return image->ptx ? sim_image_ptx(image, (const char *)payload, strnlen((const char *)payload, e->bytes))
	                  : sim_image_elf(image, payload, e->bytes);
}

static bool read_fat(struct sim_image *image, const uint8_t *fat, uint32_t device)
{
	const struct sim_fat_header *h = (const void *)fat;
	const uint8_t *end = fat + h->header_bytes + h->bytes;
	const struct sim_fat_entry *best = NULL;
	bool any = false, linked = false;

	for (const uint8_t *at = fat + h->header_bytes; at + sizeof(struct sim_fat_entry) <= end;) {
		const struct sim_fat_entry *e = (const void *)at;

		if (e->header_bytes < sizeof(*e) || e->bytes > (uint64_t)(end - at))
			break;
		any = true;
		if (e->flags & SIM_FAT_LINKED) { /* all parts form one image */
			if (!read_entry(image, e))
				return false;
			linked = true;
		} else if (worth(e, device) > (best ? worth(best, device) : 0))
			best = e;
		at += e->header_bytes + e->bytes;
	}
	if (linked)
		return true;
	if (!best) {
		image->opaque = !any;
		image->architecture = any ? UINT32_MAX : 0; /* for no existing device */
		return true;
	}
	image->architecture = best->architecture;
	return read_entry(image, best);
}

/* --- any image ---------------------------------------------------------------------------------------------------- */

static uint32_t magic_of(const void *code)
{
	uint32_t magic = 0;

	/* byte by byte: an image may be a text shorter than a word */
	for (unsigned i = 0; i < 4; i++) {
		uint8_t byte = ((const uint8_t *)code)[i];

		magic |= (uint32_t)byte << (8 * i);
		if (!byte)
			break;
	}
	return magic;
}

static const void *unwrapped(const void *code)
{
	return magic_of(code) == WRAPPER ? ((const struct wrapper *)code)->fat : code;
}

static bool is_elf(const void *code)
{
	return magic_of(code) == (UINT32_C(0x464c457f)); /* \177ELF */
}

/* The end of the last of its tables and sections. */
static size_t elf_bytes(const uint8_t *file)
{
	const Elf64_Ehdr *h = (const void *)file;
	size_t end = h->e_shoff + (size_t)h->e_shnum * h->e_shentsize;
	const Elf64_Shdr *s = (const void *)(file + h->e_shoff);

	for (unsigned i = 0; i < h->e_shnum; i++)
		if (s[i].sh_type != SHT_NOBITS && s[i].sh_offset + s[i].sh_size > end)
			end = s[i].sh_offset + s[i].sh_size;
	if (h->e_phoff + (size_t)h->e_phnum * h->e_phentsize > end)
		end = h->e_phoff + (size_t)h->e_phnum * h->e_phentsize;
	return end;
}

size_t sim_image_bytes(const void *code)
{
	code = unwrapped(code);
	if (is_elf(code))
		return elf_bytes(code);
	if (magic_of(code) == SIM_FAT) {
		const struct sim_fat_header *h = code;

		return h->header_bytes + h->bytes;
	}
	return strlen(code) + 1;
}

struct sim_image *sim_image_read(const void *code, uint32_t device)
{
	struct sim_image *image = calloc(1, sizeof(*image));
	bool read = true;

	if (!image)
		return NULL;
	code = unwrapped(code);
	if (is_elf(code)) {
		read = sim_image_elf(image, code, elf_bytes(code));
	} else if (magic_of(code) == SIM_FAT) {
		read = read_fat(image, code, device);
	} else if (strstr(code, ".version") && strstr(code, ".target")) {
		image->ptx = true;
		read = sim_image_ptx(image, code, strlen(code));
	} else {
		image->opaque = true;
	}
	if (!read) {
		sim_image_free(image);
		return NULL;
	}
	return image;
}

bool sim_image_runs(const struct sim_image *image, uint32_t device)
{
	return image->ptx ? image->architecture <= device : binary_runs(image->architecture, device);
}

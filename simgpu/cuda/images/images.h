/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SIM_IMAGES_H
#define SIM_IMAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Facts about a code image: kernels, their parameters and resources, variables; and the functions that add them. */

#define SIM_PARAMS 512 /* per kernel; the driver takes 4 KiB of them, 32 KiB since CUDA 12.1 */

struct sim_image_kernel {
	struct sim_image_kernel *next;
	char *name;
	uint32_t registers; /* per thread; 0 = not specified */
	uint32_t shared_bytes, const_bytes, local_bytes;
	uint32_t threads_most; /* per block; 0 = not specified */
	uint32_t param_count;
	struct {
		uint16_t offset, bytes;
	} *param;
};

struct sim_image_variable {
	struct sim_image_variable *next;
	char *name;
	uint64_t bytes;
	bool managed;
	uint8_t *initial; /* of size `bytes`; NULL = zero */
};

struct sim_image {
	bool opaque;           /* an unreadable image: any requested kernel exists in it */
	bool ptx;              /* compiled at load, so valid for every device from `architecture` on */
	uint32_t architecture; /* 90; 0 = not specified */
	struct sim_image_kernel *kernels;
	struct sim_image_variable *variables;
};

/* Readers of an image add facts by these. NULL or false = out of memory. */
struct sim_image_kernel *sim_image_kernel_add(struct sim_image *image, const char *name, size_t length);
struct sim_image_variable *sim_image_variable_add(struct sim_image *image, const char *name, size_t length,
                                                  uint64_t bytes);
bool sim_image_param_add(struct sim_image_kernel *kernel, uint32_t index, uint32_t offset, uint32_t bytes);
void sim_image_free(struct sim_image *image);

/* Fat binaries: a header, then entries, each a header and its code. */

#define SIM_FAT UINT32_C(0xba55ed50)

struct sim_fat_header {
	uint32_t magic;
	uint16_t version, header_bytes;
	uint64_t bytes; /* bytes of the entries */
};

enum { SIM_FAT_PTX = 1, SIM_FAT_ELF = 2 };
#define SIM_FAT_COMPRESSED UINT64_C(0x0000f000) /* by any method */
#define SIM_FAT_LINKED (UINT64_C(1) << 63)      /* our own flag: a part of the whole, not one of several alternatives */

struct sim_fat_entry {
	uint16_t kind, version;
	uint32_t header_bytes;
	uint64_t bytes; /* bytes after the header */
	uint32_t compressed_bytes, reserved;
	uint16_t minor, major;
	uint32_t architecture;
	uint32_t name_offset, name_bytes;
	uint64_t flags, zero, plain_bytes;
};

/* Reading cubins. */

/* Add the facts of a binary for one architecture. false = out of memory. */
bool sim_image_elf(struct sim_image *image, const uint8_t *file, size_t bytes);

/* Reading PTX. */

/* Add the facts of a PTX text. false = out of memory. */
bool sim_image_ptx(struct sim_image *image, const char *text, size_t bytes);

/*
 * Code images: their description of themselves. Reads cubins (ELF), PTX and fat binaries of both, unless they are
 * compressed. Any other image is unreadable: every requested kernel exists in it.
 */

/* Reads the image at `code`, for a device of that compute capability (90; 0 = any). NULL = out of memory. */
struct sim_image *sim_image_read(const void *code, uint32_t device);
/* True if a device of that compute capability can run it. */
bool sim_image_runs(const struct sim_image *image, uint32_t device);
/* The size of the image by its own headers. 0 = unknown. */
size_t sim_image_bytes(const void *code);

#endif

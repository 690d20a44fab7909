/* SPDX-License-Identifier: Apache-2.0 */
/* Fat binaries: a header, then entries, each a header and its code. */
#ifndef SIM_FAT_H
#define SIM_FAT_H

#include <stddef.h>
#include <stdint.h>

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

#endif

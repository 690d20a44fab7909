/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that overwrites the code of a library it has loaded, as a tenant would to launch unobserved: `restore`
 * writes the file's own bytes back a thousand times a second, `patch` writes a jump there once. Prints "ready".
 */
#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	if (argc != 4) {
		fprintf(stderr, "usage: meddler LIBRARY OFFSET restore|patch\n");
		return 2;
	}
	void *library = dlopen(argv[1], RTLD_NOW);
	struct link_map *map;

	if (!library || dlinfo(library, RTLD_DI_LINKMAP, &map)) {
		fprintf(stderr, "meddler: %s\n", dlerror());
		return 3;
	}
	uint8_t *code = (uint8_t *)map->l_addr + strtoul(argv[2], NULL, 0);
	uint8_t original[5], jump[5] = { 0xe9, 0, 0, 0, 0 };
	uintptr_t page = (uintptr_t)code & ~(uintptr_t)(4095);

	/* read from the file: the copy in memory may hold a breakpoint already */
	FILE *file = fopen(argv[1], "rb");

	if (!file || fseek(file, strtol(argv[2], NULL, 0), SEEK_SET) ||
	    fread(original, sizeof(original), 1, file) != 1) {
		fprintf(stderr, "meddler: cannot read %s\n", argv[1]);
		return 5;
	}
	fclose(file);
	if (mprotect((void *)page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC)) {
		perror("meddler: mprotect");
		return 4;
	}
	if (!strcmp(argv[3], "patch"))
		memcpy(code, jump, sizeof(jump));
	printf("ready\n");
	fflush(stdout);
	for (;;) {
		if (!strcmp(argv[3], "restore"))
			memcpy(code, original, sizeof(original));
		usleep(1000);
	}
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Replaces libFuzzer where it is not available: runs each given file once. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint8_t input[1 << 20];

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		FILE *file = fopen(argv[i], "rb");

		if (!file) {
			perror(argv[i]);
			return 2;
		}
		LLVMFuzzerTestOneInput(input, fread(input, 1, sizeof(input), file));
		fclose(file);
	}
	printf("%d inputs\n", argc - 1);
	return 0;
}

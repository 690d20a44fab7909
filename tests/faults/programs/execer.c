/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `execer LIBRARY TIMES BYTES`: starts CUDA, takes so many bytes of device memory and calls exec on itself, TIMES
 * times, with the same pid. The last run prints "done" and holds its memory until its input ends.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	int step = 0, result;
	long times;
	char left[24], rest[16];
	uint64_t at;
	void *library, *context;
	int (*init)(unsigned);
	int (*retain)(void **, int);
	int (*current)(void *);
	int (*alloc)(uint64_t *, size_t);

	if (argc != 4)
		return 2;
	times = strtol(argv[2], NULL, 10);
	library = dlopen(argv[1], RTLD_NOW);
	if (!library)
		return 3;
	*(void **)&init = dlsym(library, "cuInit");
	*(void **)&retain = dlsym(library, "cuDevicePrimaryCtxRetain");
	*(void **)&current = dlsym(library, "cuCtxSetCurrent");
	*(void **)&alloc = dlsym(library, "cuMemAlloc_v2");
	result = init(0);
	if (!result && ++step)
		result = retain(&context, 0);
	if (!result && ++step)
		result = current(context);
	if (!result && ++step)
		result = alloc(&at, strtoull(argv[3], NULL, 10));
	if (result) {
		printf("refused step %d with %d, %ld left\n", step, result, times);
		return 4;
	}
	if (times > 0) {
		snprintf(left, sizeof(left), "%ld", times - 1);
		execv("/proc/self/exe", (char *[]){ argv[0], argv[1], left, argv[3], NULL });
		return 5;
	}
	printf("done\n");
	fflush(stdout);
	while (fgets(rest, sizeof(rest), stdin))
		;
	return 0;
}

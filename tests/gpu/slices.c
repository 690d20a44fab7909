/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When does a card take the GPU from a program, and for how long? A kernel whose block 0 reads %globaltimer without end
 * and writes each jump of more than 5 us (begin, length) to a buffer. Two of these programs side by side, without
 * Sluice, show the hardware's time slices and what a change of contexts costs: their timer is the same.
 *
 * The simulated driver runs no PTX and writes no jump; it takes the first parameter for the kernel's length. So the
 * time between two events around each kernel is printed as well, which contains the slices of others.
 */
#include <getopt.h>
#include <string.h>

#include "tests/gpu/driver.h"

#define JUMPS_MAX 4096
#define KERNELS_MAX 256
#define REGISTERS_MAX 200

struct buffer {
	uint64_t jumps; /* of which JUMPS_MAX are kept */
	uint64_t begin_ns, end_ns;
	struct {
		uint64_t begin_ns, length_ns;
	} jump[JUMPS_MAX];
};

/* PTX with so many live registers in each thread, which a change of contexts has to save. */
static char *kernel_image(unsigned registers)
{
	char *image = NULL;
	size_t bytes = 0;
	FILE *f = open_memstream(&image, &bytes);

	if (!f)
		exit(3);
	fprintf(f, ".version 6.4\n.target sm_70\n.address_size 64\n"
	           ".visible .entry sim_busy_ns(.param .u64 length, .param .u64 buffer)\n{\n"
	           "	.reg .pred %%p<4>;\n	.reg .b32 %%r<4>;\n	.reg .b64 %%rd<12>;\n");
	fprintf(f, "	.reg .b32 %%v<%u>;\n", registers + 1);
	fprintf(f, "	ld.param.u64 %%rd1, [length];\n	ld.param.u64 %%rd2, [buffer];\n"
	           "	cvta.to.global.u64 %%rd2, %%rd2;\n"
	           "	mov.u32 %%r1, %%tid.x;\n	mov.u32 %%r2, %%ctaid.x;\n	or.b32 %%r3, %%r1, %%r2;\n"
	           "	setp.eq.u32 %%p1, %%r3, 0;\n"); /* the first thread of block 0 */
	for (unsigned i = 0; i < registers; i++)
		fprintf(f, "	add.u32 %%v%u, %%r1, %u;\n", i, i);
	fprintf(f, "	mov.u64 %%rd3, %%globaltimer;\n"
	           "	add.u64 %%rd4, %%rd3, %%rd1;\n" /* the end */
	           "	mov.u64 %%rd5, %%rd3;\n"        /* the reading before */
	           "	mov.u64 %%rd6, 0;\n"            /* jumps */
	           "	mov.u64 %%rd7, %%rd2;\n	add.u64 %%rd7, %%rd7, 24;\n"
	           "	@%%p1 st.global.u64 [%%rd2+8], %%rd3;\n"
	           "again:\n"
	           "	mov.u64 %%rd8, %%globaltimer;\n	sub.u64 %%rd9, %%rd8, %%rd5;\n");
	for (unsigned i = 0; i < registers; i++)
		fprintf(f, "	mad.lo.u32 %%v%u, %%v%u, 1664525, %%v%u;\n", i, i, (i + 1) % registers);
	fprintf(f,
	        "	setp.le.u64 %%p2, %%rd9, 5000;\n	@%%p2 bra steady;\n	@!%%p1 bra steady;\n"
	        "	setp.ge.u64 %%p3, %%rd6, %u;\n	@%%p3 bra counted;\n"
	        "	st.global.u64 [%%rd7], %%rd5;\n	st.global.u64 [%%rd7+8], %%rd9;\n"
	        "	add.u64 %%rd7, %%rd7, 16;\n"
	        "counted:\n	add.u64 %%rd6, %%rd6, 1;\n"
	        "steady:\n	mov.u64 %%rd5, %%rd8;\n	setp.lt.u64 %%p2, %%rd8, %%rd4;\n"
	        "	@%%p2 bra again;\n",
	        JUMPS_MAX);
	fprintf(f, "	@%%p1 st.global.u64 [%%rd2], %%rd6;\n	@%%p1 st.global.u64 [%%rd2+16], %%rd8;\n"
	           "	mov.u32 %%r1, 0;\n");
	for (unsigned i = 0; i < registers; i++) /* used, so that no compiler drops them */
		fprintf(f, "	xor.b32 %%r1, %%r1, %%v%u;\n", i);
	fprintf(f, "	setp.ne.u32 %%p2, %%r1, 4711;\n	@%%p2 bra out;\n	st.global.u32 [%%rd2+20], %%r1;\n"
	           "out:\n	ret;\n}\n");
	fclose(f);
	return image;
}

int main(int argc, char **argv)
{
	static const struct option known[] = {
		{ "seconds", required_argument, NULL, 's' },
		{ "kernel-ms", required_argument, NULL, 'k' },
		{ "start-ns", required_argument, NULL, 't' },
		{ "grid", required_argument, NULL, 'g' },
		{ "block", required_argument, NULL, 'b' },
		{ "shared", required_argument, NULL, 'm' },
		{ "registers", required_argument, NULL, 'r' },
		{ "print-ptx", no_argument, NULL, 'p' },
		{ NULL, 0, NULL, 0 },
	};
	static struct buffer seen;
	static double elapsed_ms[KERNELS_MAX];
	double seconds = 2, kernel_ms = 0;
	uint64_t start_ns = 0;
	unsigned grid = 1, block = 32, shared = 0, registers = 4;
	int c;

	while ((c = getopt_long(argc, argv, "", known, NULL)) != -1) {
		switch (c) {
		case 's':
			seconds = strtod(optarg, NULL);
			break;
		case 'k':
			kernel_ms = strtod(optarg, NULL);
			break;
		case 't':
			start_ns = strtoull(optarg, NULL, 0);
			break;
		case 'g':
			grid = (unsigned)strtoul(optarg, NULL, 0);
			break;
		case 'b':
			block = (unsigned)strtoul(optarg, NULL, 0);
			break;
		case 'm':
			shared = (unsigned)strtoul(optarg, NULL, 0);
			break;
		case 'r':
			registers = (unsigned)strtoul(optarg, NULL, 0);
			break;
		case 'p':
			fputs(kernel_image(registers), stdout);
			return 0;
		default:
			fprintf(stderr,
			        "usage: slices [--seconds S] [--kernel-ms MS] [--start-ns T] [--grid N] [--block N] "
			        "[--shared BYTES] [--registers N] | --print-ptx\n");
			return 2;
		}
	}
	registers = registers < 1 ? 1 : registers > REGISTERS_MAX ? REGISTERS_MAX : registers;
	start_driver();
	CUfunction kernel = load_kernel(kernel_image(registers));
	launch_fn launch;
	CUresult (*stream_create)(CUstream *, unsigned) = resolve("cuStreamCreate");
	CUresult (*event_create)(CUevent *, unsigned) = resolve("cuEventCreate");
	CUresult (*record)(CUevent, CUstream) = resolve("cuEventRecord");
	CUresult (*event_sync)(CUevent) = resolve("cuEventSynchronize");
	CUresult (*elapsed)(float *, CUevent, CUevent) = resolve("cuEventElapsedTime");
	CUresult (*mem_alloc)(CUdeviceptr *, size_t) = resolve("cuMemAlloc");
	CUresult (*copy)(void *, CUdeviceptr, size_t) = resolve("cuMemcpyDtoH");
	CUresult (*set)(CUdeviceptr, unsigned char, size_t) = resolve("cuMemsetD8");
	CUresult (*set_attribute)(CUfunction, CUfunction_attribute, int) = resolve("cuFuncSetAttribute");
	CUevent before, after;
	CUdeviceptr buffer;
	CUstream stream;

	*(void **)&launch = resolve("cuLaunchKernel");
	check(stream_create(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
	check(event_create(&before, CU_EVENT_DEFAULT), "cuEventCreate");
	check(event_create(&after, CU_EVENT_DEFAULT), "cuEventCreate");
	check(mem_alloc(&buffer, sizeof(seen)), "cuMemAlloc");
	check(set(buffer, 0, sizeof(seen)), "cuMemsetD8");
	if (shared > 48 << 10)
		check(set_attribute(kernel, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, (int)shared), "shared");

	uint64_t length_ns = (uint64_t)((kernel_ms > 0 ? kernel_ms / 1e3 : seconds) * 1e9);
	unsigned kernels = 0;
	void *params[] = { &length_ns, &buffer };

	if (start_ns)
		sleep_until(start_ns);
	for (uint64_t end_ns = now_ns() + (uint64_t)(seconds * 1e9); kernels < KERNELS_MAX; kernels++) {
		float ms = 0;

		if (kernels && now_ns() >= end_ns)
			break;
		check(record(before, stream), "cuEventRecord");
		check(launch(kernel, grid, 1, 1, block, 1, 1, shared, stream, params, NULL), "launch");
		check(record(after, stream), "cuEventRecord");
		check(event_sync(after), "cuEventSynchronize");
		check(elapsed(&ms, before, after), "cuEventElapsedTime");
		elapsed_ms[kernels] = ms;
	}
	check(copy(&seen, buffer, sizeof(seen)), "cuMemcpyDtoH"); /* of the last kernel */
	uint64_t kept = seen.jumps < JUMPS_MAX ? seen.jumps : JUMPS_MAX;

	printf("{\"kernels\": %u, \"kernel_ms\": %.3f, \"elapsed_p50_ms\": %.4f, \"elapsed_p90_ms\": %.4f, ", kernels,
	       (double)length_ns / 1e6, quantile(elapsed_ms, kernels, 0.5), quantile(elapsed_ms, kernels, 0.9));
	printf("\"begin_ns\": %llu, \"end_ns\": %llu, \"jumps\": %llu, \"jump\": [", (unsigned long long)seen.begin_ns,
	       (unsigned long long)seen.end_ns, (unsigned long long)seen.jumps);
	for (uint64_t i = 0; i < kept; i++)
		printf("%s[%llu, %llu]", i ? ", " : "", (unsigned long long)(seen.jump[i].begin_ns - seen.begin_ns),
		       (unsigned long long)seen.jump[i].length_ns);
	printf("]}\n");
	return 0;
}

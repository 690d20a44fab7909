/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Programs that share a GPU in practice, with a kernel of a known length: one that trains (always a few launches ahead of
 * the GPU), one that serves (bursts of launches, and rest between them), and one whose launches have ever new shapes. Unlike
 * tests/programs/tenant.c it never has more than `--depth` launches in flight, so that it measures the same span with
 * and without a cap. Prints one JSON object.
 */
#include <getopt.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>

#include "tests/gpu/driver.h"
#include "tests/programs/kernel.h"

#define SAMPLES_MAX 100000
#define MARKS 4 /* events that bound what is in flight */

static volatile sig_atomic_t stop;

static void on_signal(int number)
{
	(void)number;
	stop = 1;
}

struct options {
	const char *mode; /* train, serve, shapes */
	uint64_t kernel_ns;
	double seconds, warm_s;
	uint64_t start_ns; /* CLOCK_MONOTONIC */
	unsigned depth;    /* launches in flight at most */
	unsigned burst;    /* launches of a burst */
	double every_ms;   /* between the begins of bursts, plus or minus a fifth */
	unsigned grid, block, shared;
	unsigned shape_every; /* launches of each shape */
};

static struct options parse(int argc, char **argv)
{
	static const struct option known[] = {
		{ "kernel-ns", required_argument, NULL, 'k' },   { "seconds", required_argument, NULL, 's' },
		{ "warm", required_argument, NULL, 'w' },        { "start-ns", required_argument, NULL, 't' },
		{ "depth", required_argument, NULL, 'd' },       { "burst", required_argument, NULL, 'b' },
		{ "every-ms", required_argument, NULL, 'e' },    { "grid", required_argument, NULL, 'g' },
		{ "block", required_argument, NULL, 'l' },       { "shared", required_argument, NULL, 'm' },
		{ "shape-every", required_argument, NULL, 'p' }, { NULL, 0, NULL, 0 },
	};
	struct options o = { .mode = "train",
		             .kernel_ns = 1000000,
		             .seconds = 3,
		             .warm_s = 1,
		             .depth = 32,
		             .burst = 5,
		             .every_ms = 50,
		             .grid = 64,
		             .block = 256,
		             .shape_every = 32 };
	int c;

	while ((c = getopt_long(argc, argv, "", known, NULL)) != -1) {
		unsigned number = optarg ? (unsigned)strtoul(optarg, NULL, 0) : 0;

		switch (c) {
		case 'k':
			o.kernel_ns = strtoull(optarg, NULL, 0);
			break;
		case 's':
			o.seconds = strtod(optarg, NULL);
			break;
		case 'w':
			o.warm_s = strtod(optarg, NULL);
			break;
		case 't':
			o.start_ns = strtoull(optarg, NULL, 0);
			break;
		case 'd':
			o.depth = number < MARKS ? MARKS : number;
			break;
		case 'b':
			o.burst = number;
			break;
		case 'e':
			o.every_ms = strtod(optarg, NULL);
			break;
		case 'g':
			o.grid = number;
			break;
		case 'l':
			o.block = number;
			break;
		case 'm':
			o.shared = number;
			break;
		case 'p':
			o.shape_every = number ? number : 1;
			break;
		default:
			fprintf(stderr,
			        "usage: job train|serve|shapes [--kernel-ns N] [--seconds S] [--warm S] [--start-ns T] "
			        "[--depth N] [--burst N] [--every-ms MS] [--grid N] [--block N] [--shared BYTES] "
			        "[--shape-every N]\n");
			exit(2);
		}
	}
	if (optind < argc)
		o.mode = argv[optind];
	return o;
}

int main(int argc, char **argv)
{
	static double waits_ms[SAMPLES_MAX];
	struct options o = parse(argc, argv);

	signal(SIGTERM, on_signal);
	start_driver();
	CUfunction kernel = load_kernel(kernel_image);
	launch_fn launch;
	CUresult (*stream_create)(CUstream *, unsigned) = resolve("cuStreamCreate");
	CUresult (*stream_sync)(CUstream) = resolve("cuStreamSynchronize");
	CUresult (*event_create)(CUevent *, unsigned) = resolve("cuEventCreate");
	CUresult (*record)(CUevent, CUstream) = resolve("cuEventRecord");
	CUresult (*event_sync)(CUevent) = resolve("cuEventSynchronize");
	CUresult (*set_attribute)(CUfunction, CUfunction_attribute, int) = resolve("cuFuncSetAttribute");
	bool serves = strcmp(o.mode, "serve") == 0, shapes = strcmp(o.mode, "shapes") == 0;
	CUevent mark[MARKS];
	CUstream stream;

	*(void **)&launch = resolve("cuLaunchKernel");
	check(stream_create(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
	for (unsigned i = 0; i < MARKS; i++)
		check(event_create(&mark[i], CU_EVENT_DISABLE_TIMING), "cuEventCreate");
	if (o.shared > 48 << 10)
		check(set_attribute(kernel, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, (int)o.shared), "shared");
	if (o.start_ns)
		sleep_until(o.start_ns);

	uint64_t began_ns = now_ns(), at_ns = began_ns, from_ns = 0, next_ns = began_ns;
	uint64_t launches = 0, counted = 0;
	size_t waits = 0;
	unsigned seed = 7, step = o.depth / MARKS;
	void *params[] = { &o.kernel_ns };

	while (!stop && (!from_ns || at_ns - from_ns < (uint64_t)(o.seconds * 1e9))) {
		unsigned number = serves ? o.burst : step, grid = o.grid, block = o.block, shared = o.shared;
		uint64_t burst_ns = at_ns;

		for (unsigned i = 0; i < number; i++, launches++) {
			if (shapes) { /* 32,768 different ones, of which none needs more than one wave */
				uint64_t shape = launches / o.shape_every;

				grid = 1 + (unsigned)(shape % 64);
				block = 32 * (1 + (unsigned)(shape / 64 % 8));
				shared = 16 * (unsigned)(shape / 512 % 64);
			}
			check(launch(kernel, grid, 1, 1, block, 1, 1, shared, stream, params, NULL), "launch");
		}
		if (serves) {
			check(stream_sync(stream), "cuStreamSynchronize");
			at_ns = now_ns();
			if (from_ns && waits < SAMPLES_MAX)
				waits_ms[waits++] = (double)(at_ns - burst_ns) / 1e6;
			next_ns += (uint64_t)(o.every_ms * 1e6 * (0.8 + 0.4 * rand_r(&seed) / RAND_MAX));
			if (next_ns > at_ns)
				sleep_until(next_ns);
			else
				next_ns = at_ns; /* it is late: what it missed is not made up for */
		} else {
			unsigned turn = (unsigned)(launches / step % MARKS);

			check(record(mark[turn], stream), "cuEventRecord");
			check(event_sync(mark[(turn + 1) % MARKS]), "cuEventSynchronize");
		}
		at_ns = now_ns();
		if (!from_ns && at_ns - began_ns >= (uint64_t)(o.warm_s * 1e9)) {
			from_ns = at_ns;
			counted = launches;
		}
	}
	/* Without the work in flight at the end, as at the begin: as much was counted as was finished in that time. */
	check(stream_sync(stream), "cuStreamSynchronize");
	uint64_t gpu_ns = (launches - counted) * o.kernel_ns, wall_ns = at_ns > from_ns ? at_ns - from_ns : 0;

	printf("{\"launches\": %llu, \"wall_ns\": %llu, \"gpu_ns\": %llu, \"share_ratio\": %.6f, \"bursts\": %zu, ",
	       (unsigned long long)(launches - counted), (unsigned long long)wall_ns, (unsigned long long)gpu_ns,
	       wall_ns ? (double)gpu_ns / (double)wall_ns : 0.0, waits);
	printf("\"p50_ms\": %.3f, \"p90_ms\": %.3f, \"p99_ms\": %.3f}\n", quantile(waits_ms, waits, 0.5),
	       quantile(waits_ms, waits, 0.9), quantile(waits_ms, waits, 0.99));
	return 0;
}

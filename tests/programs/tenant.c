/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A driver-API program like any other: dlopens libcuda.so.1, resolves everything through cuGetProcAddress, launches
 * kernels of a known length through a chosen launch call ("door"), and prints its results as one JSON object. It knows
 * nothing of Sluice; demo, benchmarks and integration tests run it with and without a grant.
 */
#include <dlfcn.h>
#include <getopt.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "nativecommon/cuda_abi.h"
#include "tests/programs/kernel.h"

typedef CUresult (*get_proc_fn)(const char *, void **, int, uint64_t, CUdriverProcAddressQueryResult *);

static get_proc_fn get_proc;
static volatile sig_atomic_t stop;

static void on_signal(int number)
{
	(void)number;
	stop = 1;
}

static void *resolve(const char *name, uint64_t flags)
{
	void *function = NULL;
	CUdriverProcAddressQueryResult status;

	if (get_proc(name, &function, 13000, flags, &status) != CUDA_SUCCESS || !function) {
		fprintf(stderr, "tenant: %s not found\n", name);
		exit(3);
	}
	return function;
}

static void check(CUresult result, const char *what)
{
	if (result != CUDA_SUCCESS) {
		fprintf(stderr, "tenant: %s: CUDA error %d\n", what, (int)result);
		exit(4);
	}
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

#define KERNELS_MAX 16
#define STREAMS_MAX 64

struct options {
	double seconds;
	double warm_s;                   /* not counted: time for samples, bursts and plans to settle */
	double report_s;                 /* interval between JSON lines, 0 = one at the end only */
	uint64_t kernel_ns[KERNELS_MAX]; /* one is drawn at random for each launch, all of the same shape */
	unsigned kernels;
	unsigned streams;  /* used in turn */
	uint64_t launches; /* stop after so many, 0 = stop by time */
	uint64_t alloc_bytes;
	uint64_t hold_bytes; /* allocated at the start and kept */
	double idle_s;       /* after the work: keep holding the memory for so long */
	uint64_t start_ns;   /* CLOCK_MONOTONIC, so that several tenants measure the same window */
	const char *begin;   /* path of a file: the work begins when it exists */
	const char *door;
	bool sync;
	uint64_t burst_ns; /* serve: so much GPU time at once, then wait for it; 0 = work without a rest */
	uint64_t every_ns; /* mean time from the begin of one burst to the begin of the next */
	uint64_t shapes;   /* another grid after so many launches, and never the same again; 0 = one grid for ever */
};

static const struct option long_options[] = {
	{ "seconds", required_argument, NULL, 's' },  { "kernel-ns", required_argument, NULL, 'k' },
	{ "sync", no_argument, NULL, 'y' },           { "door", required_argument, NULL, 'd' },
	{ "alloc", required_argument, NULL, 'a' },    { "hold", required_argument, NULL, 'h' },
	{ "warm", required_argument, NULL, 'w' },     { "report", required_argument, NULL, 'r' },
	{ "launches", required_argument, NULL, 'n' }, { "idle", required_argument, NULL, 'i' },
	{ "start-ns", required_argument, NULL, 't' }, { "streams", required_argument, NULL, 'm' },
	{ "begin", required_argument, NULL, 'b' },    { "burst-ns", required_argument, NULL, 'u' },
	{ "every-ns", required_argument, NULL, 'e' }, { "new-shape", required_argument, NULL, 'x' },
	{ NULL, 0, NULL, 0 },
};

static struct options parse(int argc, char **argv)
{
	struct options o = { .seconds = 1, .kernel_ns = { 1000000 }, .kernels = 1, .streams = 1, .door = "plain" };
	int c;

	while ((c = getopt_long(argc, argv, "", long_options, NULL)) != -1) {
		switch (c) {
		case 's':
			o.seconds = strtod(optarg, NULL);
			break;
		case 'k':
			o.kernels = 0;
			for (char *at = optarg; o.kernels < KERNELS_MAX && *at; at += *at == ',')
				o.kernel_ns[o.kernels++] = strtoull(at, &at, 0);
			break;
		case 'y':
			o.sync = true;
			break;
		case 'd':
			o.door = optarg;
			break;
		case 'a':
			o.alloc_bytes = strtoull(optarg, NULL, 0);
			break;
		case 'h':
			o.hold_bytes = strtoull(optarg, NULL, 0);
			break;
		case 'w':
			o.warm_s = strtod(optarg, NULL);
			break;
		case 'r':
			o.report_s = strtod(optarg, NULL);
			break;
		case 'n':
			o.launches = strtoull(optarg, NULL, 0);
			break;
		case 'i':
			o.idle_s = strtod(optarg, NULL);
			break;
		case 'm':
			o.streams = (unsigned)strtoul(optarg, NULL, 0);
			o.streams = o.streams < 1 ? 1 : o.streams > STREAMS_MAX ? STREAMS_MAX : o.streams;
			break;
		case 'b':
			o.begin = optarg;
			break;
		case 'u':
			o.burst_ns = strtoull(optarg, NULL, 0);
			break;
		case 'e':
			o.every_ns = strtoull(optarg, NULL, 0);
			break;
		case 'x':
			o.shapes = strtoull(optarg, NULL, 0);
			break;
		case 't':
			o.start_ns = strtoull(optarg, NULL, 0);
			break;
		default:
			fprintf(stderr,
			        "usage: tenant [--seconds S] [--kernel-ns N[,N…]] [--streams N] [--sync] [--door "
			        "plain|ex|coop|graph|"
			        "ptsz] [--alloc BYTES] [--hold BYTES] [--warm S] [--report S] [--launches N] [--begin "
			        "FILE] [--burst-ns N --every-ns N] [--new-shape LAUNCHES]\n");
			exit(2);
		}
	}
	return o;
}

static struct {
	CUresult (*launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
	                   void **, void **);
	CUresult (*launch_ex)(const CUlaunchConfig *, CUfunction, void **, void **);
	CUresult (*launch_coop)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
	                        CUstream, void **);
	CUresult (*graph_launch)(CUgraphExec, CUstream);
	CUresult (*stream_sync)(CUstream);
	CUresult (*ctx_sync)(CUcontext); /* CUDA 13: NULL is the current one; older forms ignore it */
} api;

static CUgraphExec capture_one(CUfunction kernel, CUstream stream, void **params)
{
	CUresult (*begin)(CUstream, CUstreamCaptureMode) = resolve("cuStreamBeginCapture", 0);
	CUresult (*end)(CUstream, CUgraph *) = resolve("cuStreamEndCapture", 0);
	CUresult (*instantiate)(CUgraphExec *, CUgraph, unsigned long long) = resolve("cuGraphInstantiateWithFlags", 0);
	CUgraph graph = NULL;
	CUgraphExec exec = NULL;

	check(begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), "cuStreamBeginCapture");
	check(api.launch(kernel, 64, 1, 1, 256, 1, 1, 0, stream, params, NULL), "captured launch");
	check(end(stream, &graph), "cuStreamEndCapture");
	check(instantiate(&exec, graph, 0), "cuGraphInstantiateWithFlags");
	return exec;
}

#define LATENCIES 65536

/* Requests arrive at random moments, `every_ns` apart on average, so that no period of a plan falls into step with
 * them. Each is a burst of kernels; its latency runs from its arrival to the end of its last kernel. */
struct server {
	uint64_t arrived_ns;
	uint64_t due_ns;  /* arrival of the next request */
	uint64_t sent_ns; /* GPU time of the request that was launched */
	unsigned seed;
	unsigned done;
	uint64_t latency_ns[LATENCIES];
};

/* Before a launch: wait for the next request if the last one is answered. */
static void server_await(struct server *server, const struct options *o)
{
	if (server->sent_ns)
		return;
	if (!server->due_ns)
		server->due_ns = now_ns();
	while (!stop && now_ns() < server->due_ns) {
		uint64_t left_ns = server->due_ns - now_ns();
		struct timespec rest = { .tv_sec = 0, .tv_nsec = (long)(left_ns < 100000000 ? left_ns : 100000000) };

		nanosleep(&rest, NULL);
	}
	server->arrived_ns = server->due_ns;
	/* between 0.8 and 1.2 of the mean interval */
	server->due_ns += o->every_ns / 5 * 4 + o->every_ns / 5 * 2 * ((uint64_t)rand_r(&server->seed) % 1024) / 1023;
}

/* After a launch: true when the whole request is launched, so that the caller waits for its end. */
static bool server_sent(struct server *server, const struct options *o, uint64_t kernel_ns)
{
	server->sent_ns += kernel_ns;
	return server->sent_ns >= o->burst_ns;
}

static void server_answered(struct server *server, bool counted)
{
	uint64_t at_ns = now_ns();

	server->sent_ns = 0;
	if (counted && server->done < LATENCIES)
		server->latency_ns[server->done++] = at_ns - server->arrived_ns;
	if (server->due_ns < at_ns) /* late: the next one follows at once, and the rest is not caught up */
		server->due_ns = at_ns;
}

static int by_length(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static void server_print(struct server *server)
{
	unsigned n = server->done;

	qsort(server->latency_ns, n, sizeof(server->latency_ns[0]), by_length);
	printf("\"requests\": %u, \"p50_ms\": %.3f, \"p90_ms\": %.3f, \"p99_ms\": %.3f, ", n,
	       n ? (double)server->latency_ns[n / 2] / 1e6 : 0.0,
	       n ? (double)server->latency_ns[n * 9 / 10] / 1e6 : 0.0,
	       n ? (double)server->latency_ns[n * 99 / 100] / 1e6 : 0.0);
}

int main(int argc, char **argv)
{
	struct options o = parse(argc, argv);
	void *library = dlopen("libcuda.so.1", RTLD_NOW);

	if (!library) {
		fprintf(stderr, "tenant: %s\n", dlerror());
		return 3;
	}
	signal(SIGTERM, on_signal);
	signal(SIGINT, on_signal);
	*(void **)&get_proc = dlsym(library, "cuGetProcAddress_v2");
	if (!get_proc) {
		fprintf(stderr, "tenant: no cuGetProcAddress_v2\n");
		return 3;
	}

	CUresult (*init)(unsigned) = resolve("cuInit", 0);
	CUresult (*device_get)(CUdevice *, int) = resolve("cuDeviceGet", 0);
	CUresult (*retain)(CUcontext *, CUdevice) = resolve("cuDevicePrimaryCtxRetain", 0);
	CUresult (*set_current)(CUcontext) = resolve("cuCtxSetCurrent", 0);
	CUresult (*load)(CUmodule *, const void *) = resolve("cuModuleLoadData", 0);
	CUresult (*get_function)(CUfunction *, CUmodule, const char *) = resolve("cuModuleGetFunction", 0);
	CUresult (*stream_create)(CUstream *, unsigned) = resolve("cuStreamCreate", 0);
	CUresult (*mem_alloc)(CUdeviceptr *, size_t) = resolve("cuMemAlloc", 0);
	CUresult (*mem_free)(CUdeviceptr) = resolve("cuMemFree", 0);
	CUresult (*mem_info)(size_t *, size_t *) = resolve("cuMemGetInfo", 0);
	bool ptsz = strcmp(o.door, "ptsz") == 0;
	uint64_t flags = ptsz ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : CU_GET_PROC_ADDRESS_LEGACY_STREAM;

	*(void **)&api.launch = resolve("cuLaunchKernel", flags);
	*(void **)&api.launch_ex = resolve("cuLaunchKernelEx", flags);
	*(void **)&api.launch_coop = resolve("cuLaunchCooperativeKernel", flags);
	*(void **)&api.graph_launch = resolve("cuGraphLaunch", flags);
	*(void **)&api.stream_sync = resolve("cuStreamSynchronize", flags);
	*(void **)&api.ctx_sync = resolve("cuCtxSynchronize", 0);

	CUdevice device;
	CUcontext context;
	CUmodule module;
	CUfunction kernel;
	CUstream streams[STREAMS_MAX] = { NULL };
	CUdeviceptr held = 0, extra = 0;
	CUresult held_result = CUDA_SUCCESS, extra_result = CUDA_SUCCESS;

	check(init(0), "cuInit");
	check(device_get(&device, 0), "cuDeviceGet");
	check(retain(&context, device), "cuDevicePrimaryCtxRetain");
	check(set_current(context), "cuCtxSetCurrent");
	check(load(&module, kernel_image), "cuModuleLoadData");
	check(get_function(&kernel, module, "sim_busy_ns"), "cuModuleGetFunction");
	for (unsigned i = 0; !ptsz && i < o.streams; i++)
		check(stream_create(&streams[i], CU_STREAM_NON_BLOCKING), "cuStreamCreate");
	if (o.hold_bytes)
		held_result = mem_alloc(&held, o.hold_bytes);
	if (o.alloc_bytes)
		extra_result = mem_alloc(&extra, o.alloc_bytes);

	CUlaunchConfig config = {
		.gridDimX = 64, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 256, .blockDimY = 1, .blockDimZ = 1
	};
	CUgraphExec exec[KERNELS_MAX] = { NULL };

	for (unsigned i = 0; strcmp(o.door, "graph") == 0 && i < o.kernels; i++)
		exec[i] = capture_one(kernel, streams[0], (void *[]){ &o.kernel_ns[i] });
	uint64_t launches = 0, gpu_ns = 0, counted = 0;
	unsigned seed = 1;
	static struct server server = { .seed = 7 };

	while (!stop && o.begin && access(o.begin, F_OK) != 0)
		usleep(500);
	while (o.start_ns && now_ns() < o.start_ns)
		usleep(500);
	uint64_t began_ns = now_ns(), from_ns = 0, report_ns = began_ns, reported = 0, at_ns = began_ns;
	uint64_t warm_ns = (uint64_t)(o.warm_s * 1e9), counted_ns = (uint64_t)(o.seconds * 1e9);

	if (warm_ns == 0)
		from_ns = began_ns;
	while (!stop && (o.launches ? launches < o.launches : !from_ns || at_ns - from_ns < counted_ns)) {
		CUresult result;
		unsigned pick = o.kernels > 1 ? (unsigned)rand_r(&seed) % o.kernels : 0;
		CUstream stream = streams[launches % o.streams];
		void *params[] = { &o.kernel_ns[pick] };
		unsigned grid = o.shapes ? 64 + (unsigned)(launches / o.shapes) : 64;

		if (o.burst_ns)
			server_await(&server, &o);
		config.gridDimX = grid;
		config.hStream = stream;
		if (exec[pick])
			result = api.graph_launch(exec[pick], stream);
		else if (strcmp(o.door, "ex") == 0)
			result = api.launch_ex(&config, kernel, params, NULL);
		else if (strcmp(o.door, "coop") == 0)
			result = api.launch_coop(kernel, grid, 1, 1, 256, 1, 1, 0, stream, params);
		else
			result = api.launch(kernel, grid, 1, 1, 256, 1, 1, 0, stream, params, NULL);
		check(result, "launch");
		launches++;
		gpu_ns += o.kernel_ns[pick];
		bool answered = o.burst_ns && server_sent(&server, &o, o.kernel_ns[pick]);

		if (o.sync || answered || (!from_ns && now_ns() - began_ns >= warm_ns))
			check(o.streams > 1 ? api.ctx_sync(NULL) : api.stream_sync(stream), "synchronize");
		if (answered)
			server_answered(&server, from_ns != 0);
		at_ns = now_ns();
		if (!from_ns && at_ns - began_ns >= warm_ns) {
			from_ns = at_ns;
			counted = gpu_ns;
			report_ns = at_ns;
			reported = gpu_ns;
		}
		if (o.report_s > 0 && from_ns && (double)(at_ns - report_ns) >= o.report_s * 1e9) {
			printf("{\"at_ns\": %llu, \"share_ratio\": %.6f}\n", (unsigned long long)at_ns,
			       (double)(gpu_ns - reported) / (double)(at_ns - report_ns));
			fflush(stdout);
			report_ns = at_ns;
			reported = gpu_ns;
		}
	}
	if (launches)
		check(api.ctx_sync(NULL), "cuCtxSynchronize");
	at_ns = now_ns();

	size_t free_bytes = 0, total_bytes = 0;

	check(mem_info(&free_bytes, &total_bytes), "cuMemGetInfo");
	printf("{");
	if (o.burst_ns)
		server_print(&server);
	printf("\"launches\": %llu, \"wall_ns\": %llu, \"gpu_ns\": %llu, \"share_ratio\": %.6f, \"hold_result\": %d, "
	       "\"alloc_result\": %d, \"free_bytes\": %llu, \"total_bytes\": %llu}\n",
	       (unsigned long long)launches, (unsigned long long)(at_ns - from_ns),
	       (unsigned long long)(gpu_ns - counted),
	       at_ns > from_ns ? (double)(gpu_ns - counted) / (double)(at_ns - from_ns) : 0.0, (int)held_result,
	       (int)extra_result, (unsigned long long)free_bytes, (unsigned long long)total_bytes);
	fflush(stdout);
	for (uint64_t end_ns = now_ns() + (uint64_t)(o.idle_s * 1e9); !stop && now_ns() < end_ns;)
		usleep(1000);
	if (extra && extra_result == CUDA_SUCCESS)
		check(mem_free(extra), "cuMemFree");
	if (held && held_result == CUDA_SUCCESS)
		check(mem_free(held), "cuMemFree");
	return stop ? 128 + SIGTERM : 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What calls of the driver and of NVML cost on this machine, in nanoseconds (median of batches): those that the interposer
 * makes at its gate and for its records, a launch, and NVML's list of processes; launches' 99th percentile while a thread
 * reads that list; and what an event after every 1, 10 or 100 kernels adds to a queue of short ones.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "tests/gpu/driver.h"
#include "tests/programs/kernel.h"

#define BATCH 100
#define ROUNDS 40

typedef CUresult (*nvml_list_fn)(void *, unsigned *, void *);

static launch_fn launch;
static CUresult (*record)(CUevent, CUstream);
static CUresult (*query)(CUevent);
static CUresult (*elapsed)(float *, CUevent, CUevent);
static CUresult (*is_capturing)(CUstream, CUstreamCaptureStatus *);
static CUresult (*exchange)(CUstreamCaptureMode *);
static CUresult (*stream_sync)(CUstream);
static CUstream stream[2];
static CUevent event[2];
static CUfunction kernel;
static uint64_t short_ns = 1000;
static nvml_list_fn nvml_list;
static void *nvml_device;
static atomic_bool ended;

static void one_launch(void)
{
	void *params[] = { &short_ns };

	check(launch(kernel, 1, 1, 1, 32, 1, 1, 0, stream[0], params, NULL), "launch");
}

static void one_record(void)
{
	check(record(event[0], stream[0]), "cuEventRecord");
}

static void record_in_turn(void)
{
	static unsigned turn;

	turn ^= 1;
	check(record(event[turn], stream[turn]), "cuEventRecord");
}

static void record_legacy(void)
{
	check(record(event[0], NULL), "cuEventRecord");
}

static void one_query(void)
{
	check(query(event[0]), "cuEventQuery");
}

static void one_elapsed(void)
{
	float ms;

	check(elapsed(&ms, event[0], event[1]), "cuEventElapsedTime");
}

static void one_is_capturing(void)
{
	CUstreamCaptureStatus status;

	check(is_capturing(stream[0], &status), "cuStreamIsCapturing");
}

static void one_exchange(void)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;

	check(exchange(&mode), "cuThreadExchangeStreamCaptureMode");
}

static void list_processes(void)
{
	static char room[64 * 256];
	unsigned count = 256;

	if (nvml_list)
		nvml_list(nvml_device, &count, room);
}

/* Prints the median; the streams are empty at each batch's begin, and waiting for that is not counted. */
static void measure(const char *name, void (*call)(void), unsigned batch)
{
	double ns[ROUNDS];

	for (unsigned i = 0; i < ROUNDS; i++) {
		check(stream_sync(stream[0]), "cuStreamSynchronize");
		check(stream_sync(stream[1]), "cuStreamSynchronize");
		uint64_t began = now_ns();

		for (unsigned j = 0; j < batch; j++)
			call();
		ns[i] = (double)(now_ns() - began) / batch;
	}
	printf("\"%s_ns\": %.1f, ", name, quantile(ns, ROUNDS, 0.5));
}

static void launch_tail(const char *name)
{
	static double ns[20000];
	size_t count = sizeof(ns) / sizeof(ns[0]);

	for (size_t i = 0; i < count; i++) {
		uint64_t began = now_ns();

		one_launch();
		ns[i] = (double)(now_ns() - began);
		if (i % 256 == 255)
			check(stream_sync(stream[0]), "cuStreamSynchronize");
	}
	printf("\"%s_p99_ns\": %.1f, ", name, quantile(ns, count, 0.99));
}

static void *list_on_and_on(void *unused)
{
	while (!atomic_load(&ended))
		list_processes();
	return unused;
}

static double queue_ms(unsigned kernels, uint64_t length_ns, unsigned event_each)
{
	void *params[] = { &length_ns };
	uint64_t began = now_ns();

	for (unsigned i = 1; i <= kernels; i++) {
		check(launch(kernel, 1, 1, 1, 32, 1, 1, 0, stream[0], params, NULL), "launch");
		if (event_each && i % event_each == 0)
			one_record();
	}
	check(stream_sync(stream[0]), "cuStreamSynchronize");
	return (double)(now_ns() - began) / 1e6;
}

static void find_nvml(void)
{
	void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);

	if (!library)
		return;
	CUresult (*init)(void), (*by_index)(unsigned, void **);

	*(void **)&init = dlsym(library, "nvmlInit_v2");
	*(void **)&by_index = dlsym(library, "nvmlDeviceGetHandleByIndex_v2");
	if (init && by_index && init() == 0 && by_index(0, &nvml_device) == 0)
		*(void **)&nvml_list = dlsym(library, "nvmlDeviceGetComputeRunningProcesses_v3");
}

int main(int argc, char **argv)
{
	unsigned kernels = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 0) : 10000;
	uint64_t length_ns = argc > 2 ? strtoull(argv[2], NULL, 0) : 5000; /* of a queued kernel */
	CUresult (*stream_create)(CUstream *, unsigned) = resolve("cuStreamCreate");
	CUresult (*event_create)(CUevent *, unsigned) = resolve("cuEventCreate");
	pthread_t reader;

	*(void **)&launch = resolve("cuLaunchKernel");
	*(void **)&record = resolve("cuEventRecord");
	*(void **)&query = resolve("cuEventQuery");
	*(void **)&elapsed = resolve("cuEventElapsedTime");
	*(void **)&is_capturing = resolve("cuStreamIsCapturing");
	*(void **)&exchange = resolve("cuThreadExchangeStreamCaptureMode");
	*(void **)&stream_sync = resolve("cuStreamSynchronize");
	start_driver();
	kernel = load_kernel(kernel_image);
	for (unsigned i = 0; i < 2; i++) {
		check(stream_create(&stream[i], CU_STREAM_NON_BLOCKING), "cuStreamCreate");
		check(event_create(&event[i], CU_EVENT_DEFAULT), "cuEventCreate");
		check(record(event[i], stream[i]), "cuEventRecord");
	}
	find_nvml();
	queue_ms(100, length_ns, 10); /* loads the code */
	printf("{");
	measure("launch", one_launch, BATCH);
	measure("record", one_record, BATCH);
	measure("record_two_streams", record_in_turn, BATCH);
	measure("record_legacy", record_legacy, BATCH);
	measure("query", one_query, BATCH);
	measure("elapsed", one_elapsed, BATCH);
	measure("is_capturing", one_is_capturing, BATCH);
	measure("exchange_capture_mode", one_exchange, 2 * BATCH);
	if (nvml_list)
		measure("nvml_processes", list_processes, 5);
	launch_tail("launch");
	if (nvml_list && pthread_create(&reader, NULL, list_on_and_on, NULL) == 0) {
		launch_tail("launch_beside_nvml");
		atomic_store(&ended, true);
		pthread_join(reader, NULL);
	}
	static const unsigned each[] = { 0, 100, 10, 1 };

	for (unsigned i = 0; i < 4; i++)
		printf("\"queue_event_each_%u_ms\": %.3f, ", each[i], queue_ms(kernels, length_ns, each[i]));
	printf("\"queue_kernels\": %u}\n", kernels);
	return 0;
}

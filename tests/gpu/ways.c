/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fills a GPU by one of the driver's own ways to memory until it is refused, as jobs/fill.py does by libraries: prints a JSON
 * object when it is full, waits for a line, gives all back, takes one block again and prints another. `kv` is a server's
 * way instead: it takes nine tenths of what is free for a cache, gives the memory back while it sleeps and takes it again.
 */
#include <stdbool.h>
#include <string.h>

#include "tests/gpu/driver.h"
#include "tests/programs/kernel.h"

#define BLOCK ((size_t)256 << 20)
#define MOST 40
#define NAPS 3

static CUdevice device;
static CUresult (*mem_info)(size_t *, size_t *);

struct block {
	CUdeviceptr at;
	CUmemGenericAllocationHandle handle;
	CUarray array;
	CUgraph graph;
	CUgraphExec exec;
	int descriptor;
};

struct way {
	const char *name;
	CUresult (*take)(struct block *);
	void (*give)(struct block *);
};

static CUresult take_plain(struct block *b)
{
	CUresult (*alloc)(CUdeviceptr *, size_t) = resolve("cuMemAlloc");

	return alloc(&b->at, BLOCK);
}

static void give_plain(struct block *b)
{
	CUresult (*release)(CUdeviceptr) = resolve("cuMemFree");

	check(release(b->at), "cuMemFree");
}

static CUresult take_pool(struct block *b)
{
	CUresult (*alloc)(CUdeviceptr *, size_t, CUstream) = resolve("cuMemAllocAsync");
	CUresult (*sync)(CUstream) = resolve("cuStreamSynchronize");
	CUresult r = alloc(&b->at, BLOCK, NULL);

	return r == CUDA_SUCCESS ? sync(NULL) : r;
}

static void give_pool(struct block *b)
{
	CUresult (*release)(CUdeviceptr, CUstream) = resolve("cuMemFreeAsync");
	CUresult (*sync)(CUstream) = resolve("cuStreamSynchronize");

	check(release(b->at, NULL), "cuMemFreeAsync");
	check(sync(NULL), "cuStreamSynchronize");
}

/* Reserved, created, mapped and made accessible; exported as a descriptor too, as a server's workers do. */
static CUresult take_mapped(struct block *b, bool exported)
{
	CUresult (*create)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long) =
		resolve("cuMemCreate");
	CUresult (*reserve)(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long) =
		resolve("cuMemAddressReserve");
	CUresult (*map)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long) =
		resolve("cuMemMap");
	CUresult (*set_access)(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t) = resolve("cuMemSetAccess");
	CUresult (*export)(void *, CUmemGenericAllocationHandle, CUmemAllocationHandleType, unsigned long long) =
		resolve("cuMemExportToShareableHandle");
	CUmemAllocationProp prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
		                     .requestedHandleTypes = exported ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : 0,
		                     .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device } };
	CUmemAccessDesc access = { .location = prop.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	CUresult r = create(&b->handle, BLOCK, &prop, 0);

	if (r != CUDA_SUCCESS)
		return r;
	check(reserve(&b->at, BLOCK, 0, 0, 0), "cuMemAddressReserve");
	check(map(b->at, BLOCK, 0, b->handle, 0), "cuMemMap");
	check(set_access(b->at, BLOCK, &access, 1), "cuMemSetAccess");
	b->descriptor = -1;
	if (exported)
		check(export(&b->descriptor, b->handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0), "export");
	return CUDA_SUCCESS;
}

static CUresult take_vmm(struct block *b)
{
	return take_mapped(b, false);
}

static CUresult take_exported(struct block *b)
{
	return take_mapped(b, true);
}

static void give_mapped(struct block *b)
{
	CUresult (*unmap)(CUdeviceptr, size_t) = resolve("cuMemUnmap");
	CUresult (*release)(CUmemGenericAllocationHandle) = resolve("cuMemRelease");
	CUresult (*address_free)(CUdeviceptr, size_t) = resolve("cuMemAddressFree");

	check(unmap(b->at, BLOCK), "cuMemUnmap");
	check(release(b->handle), "cuMemRelease");
	check(address_free(b->at, BLOCK), "cuMemAddressFree");
	if (b->descriptor >= 0)
		close(b->descriptor); /* it holds the memory, too */
}

static CUresult take_array(struct block *b)
{
	CUresult (*create)(CUarray *, const CUDA_ARRAY_DESCRIPTOR *) = resolve("cuArrayCreate");
	CUDA_ARRAY_DESCRIPTOR shape = { .Width = 8192, .Height = 8192, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1 };

	return create(&b->array, &shape);
}

static void give_array(struct block *b)
{
	CUresult (*destroy)(CUarray) = resolve("cuArrayDestroy");

	check(destroy(b->array), "cuArrayDestroy");
}

static CUresult take_graph(struct block *b)
{
	CUresult (*create)(CUgraph *, unsigned) = resolve("cuGraphCreate");
	CUresult (*add)(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUDA_MEM_ALLOC_NODE_PARAMS *) =
		resolve("cuGraphAddMemAllocNode");
	CUresult (*instantiate)(CUgraphExec *, CUgraph, unsigned long long) = resolve("cuGraphInstantiateWithFlags");
	CUresult (*graph_launch)(CUgraphExec, CUstream) = resolve("cuGraphLaunch");
	CUresult (*sync)(CUstream) = resolve("cuStreamSynchronize");
	CUDA_MEM_ALLOC_NODE_PARAMS params = { .poolProps = { .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
		                                             .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE,
		                                                           .id = device } },
		                              .bytesize = BLOCK };
	CUgraphNode node;

	check(create(&b->graph, 0), "cuGraphCreate");
	check(add(&node, b->graph, NULL, 0, &params), "cuGraphAddMemAllocNode");
	b->at = params.dptr;
	CUresult r = instantiate(&b->exec, b->graph, 0);

	if (r == CUDA_SUCCESS)
		r = graph_launch(b->exec, NULL);
	return r == CUDA_SUCCESS ? sync(NULL) : r;
}

static void give_graph(struct block *b)
{
	CUresult (*trim)(CUdevice) = resolve("cuDeviceGraphMemTrim");

	give_pool(b);
	check(trim(device), "cuDeviceGraphMemTrim");
}

static const struct way ways[] = {
	{ "driver", take_plain, give_plain },        { "driver-pool", take_pool, give_pool },
	{ "driver-vmm", take_vmm, give_mapped },     { "driver-exported", take_exported, give_mapped },
	{ "driver-arrays", take_array, give_array }, { "driver-graph", take_graph, give_graph },
};

static void run_kernel(void)
{
	launch_fn launch;
	CUresult (*sync)(CUstream) = resolve("cuStreamSynchronize");
	uint64_t length_ns = 1000;
	void *params[] = { &length_ns };

	*(void **)&launch = resolve("cuLaunchKernel");
	check(launch(load_kernel(kernel_image), 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL), "launch");
	check(sync(NULL), "cuStreamSynchronize");
}

static void wait_for_line(void)
{
	char line[64];

	if (!fgets(line, sizeof(line), stdin))
		exit(0);
}

static int fill(const struct way *way)
{
	static struct block held[MOST];
	size_t free_bytes, total_bytes, blocks = 0;
	CUresult refused = CUDA_SUCCESS;

	check(mem_info(&free_bytes, &total_bytes), "cuMemGetInfo");
	while (blocks < MOST && (refused = way->take(&held[blocks])) == CUDA_SUCCESS)
		blocks++;
	printf("{\"total_bytes\": %zu, \"held_bytes\": %zu, \"refused\": \"%.0d\"}\n", total_bytes, blocks * BLOCK,
	       (int)refused);
	fflush(stdout);
	wait_for_line();
	while (blocks)
		way->give(&held[--blocks]);
	refused = way->take(&held[0]);
	printf("{\"recovered\": %s}\n", refused == CUDA_SUCCESS ? "true" : "false");
	return 0;
}

/* Nine tenths of what is free are taken; whether free memory grows meanwhile, which servers refuse to start with. */
static int serve(void)
{
	static struct block held[1024];
	size_t free_bytes, total_bytes, before, after, wanted, blocks = 0;
	unsigned woke = 0;

	check(mem_info(&before, &total_bytes), "cuMemGetInfo");
	for (unsigned i = 0; i < 20; i++) { /* as long as a profile run; a neighbour gives memory back meanwhile */
		usleep(50000);
		check(mem_info(&after, &total_bytes), "cuMemGetInfo");
		if (after > before)
			break;
	}
	wanted = before / 10 * 9 / BLOCK;
	wanted = wanted < 1024 ? wanted : 1024;
	while (blocks < wanted && take_vmm(&held[blocks]) == CUDA_SUCCESS)
		blocks++;
	for (unsigned i = 0; i < NAPS && blocks == wanted; i++) {
		for (size_t j = 0; j < wanted; j++)
			give_mapped(&held[j]);
		check(mem_info(&free_bytes, &total_bytes), "cuMemGetInfo");
		for (blocks = 0; blocks < wanted && take_vmm(&held[blocks]) == CUDA_SUCCESS;)
			blocks++;
		woke += blocks == wanted;
	}
	printf("{\"total_bytes\": %zu, \"free_before_bytes\": %zu, \"free_after_bytes\": %zu, \"wanted_bytes\": %zu, "
	       "\"held_bytes\": %zu, \"woke\": %u}\n",
	       total_bytes, before, after, wanted * BLOCK, blocks * BLOCK, woke);
	return 0;
}

int main(int argc, char **argv)
{
	const char *name = argc > 1 ? argv[1] : "driver";

	device = start_driver();
	mem_info = resolve("cuMemGetInfo");
	run_kernel();
	if (strcmp(name, "kv") == 0)
		return serve();
	for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++)
		if (strcmp(name, ways[i].name) == 0)
			return fill(&ways[i]);
	fprintf(stderr, "ways: %s is none of them\n", name);
	return 2;
}

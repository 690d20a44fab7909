/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuInit, versions, and what the devices say about themselves.
 */
#include <stdio.h>
#include <string.h>

#include "interpose/sim/objects.h"

API CUresult cuInit(unsigned flags)
{
	CUresult r;

	if (flags != 0)
		return CUDA_ERROR_INVALID_VALUE;
	r = process_init();
	return r == CUDA_SUCCESS ? api_enter(__func__) : r;
}

/* The only call besides cuInit that works before it, as far as there is a node to ask. */
API CUresult cuDriverGetVersion(int *version)
{
	if (!version)
		return CUDA_ERROR_INVALID_VALUE;
	*version = sim_node || sim_node_open() == 0 ? (int)sim_node->knobs.driver_version : 13000;
	return CUDA_SUCCESS;
}

bool ordinal_valid(CUdevice dev)
{
	return dev >= 0 && dev < process.count;
}

/* Entering for calls about a device. */
static CUresult enter_device(const char *function, CUdevice dev, const void *ret)
{
	CUresult r = api_enter(function);

	if (r != CUDA_SUCCESS)
		return r;
	if (!ret)
		return CUDA_ERROR_INVALID_VALUE;
	return ordinal_valid(dev) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

API CUresult cuDeviceGetCount(int *count)
{
	CUresult r = api_enter(__func__);

	if (r != CUDA_SUCCESS)
		return r;
	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	*count = process.count;
	return CUDA_SUCCESS;
}

API CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	CUresult r = enter_device(__func__, ordinal, device);

	if (r == CUDA_SUCCESS)
		*device = ordinal;
	return r;
}

API CUresult cuDeviceGetName(char *name, int length, CUdevice dev)
{
	CUresult r = enter_device(__func__, dev, name);

	if (r != CUDA_SUCCESS)
		return r;
	if (length <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	snprintf(name, (size_t)length, "%s", node_device(dev)->model.name);
	return CUDA_SUCCESS;
}

API CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice dev)
{
	CUresult r = enter_device(__func__, dev, uuid);

	if (r == CUDA_SUCCESS)
		memcpy(uuid->bytes, node_device(dev)->uuid, sizeof(uuid->bytes));
	return r;
}

API CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev)
{
	return cuDeviceGetUuid(uuid, dev);
}

API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
	CUresult r = enter_device(__func__, dev, bytes);

	if (r == CUDA_SUCCESS)
		*bytes = node_device(dev)->model.total_bytes;
	return r;
}

/* The 32-bit forms of before CUDA 3.2 saturate. */
API CUresult cuDeviceTotalMem(unsigned *bytes, CUdevice dev)
{
	CUresult r = enter_device(__func__, dev, bytes);

	if (r == CUDA_SUCCESS)
		*bytes = node_device(dev)->model.total_bytes > UINT32_MAX ? UINT32_MAX :
		                                                            (unsigned)node_device(dev)->model.total_bytes;
	return r;
}

API CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice dev)
{
	CUresult r = enter_device(__func__, dev, major && minor ? major : NULL);

	if (r != CUDA_SUCCESS)
		return r;
	*major = (int)node_device(dev)->model.cc_major;
	*minor = (int)node_device(dev)->model.cc_minor;
	return CUDA_SUCCESS;
}

API CUresult cuDeviceGetPCIBusId(char *text, int length, CUdevice dev)
{
	CUresult r = enter_device(__func__, dev, text);

	if (r != CUDA_SUCCESS)
		return r;
	if (length <= 0 || snprintf(text, (size_t)length, "0000:%02X:00.0", node_device(dev)->pci_bus) >= length)
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

API CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *text)
{
	unsigned domain = 0, bus = 0, slot = 0;
	CUresult r = api_enter(__func__);

	if (r != CUDA_SUCCESS)
		return r;
	if (!device || !text)
		return CUDA_ERROR_INVALID_VALUE;
	if (sscanf(text, "%x:%x:%x", &domain, &bus, &slot) != 3) { /* NOLINT(cert-err34-c): hexadecimal, short */
		domain = 0;
		if (sscanf(text, "%x:%x", &bus, &slot) != 2) /* NOLINT(cert-err34-c) */
			return CUDA_ERROR_INVALID_VALUE;
	}
	for (int i = 0; i < process.count; i++) {
		if (domain == 0 && slot == 0 && node_device(i)->pci_bus == bus) {
			*device = i;
			return CUDA_SUCCESS;
		}
	}
	return CUDA_ERROR_INVALID_DEVICE;
}

API CUresult cuDeviceGetLuid(char *luid, unsigned *mask, CUdevice dev)
{
	(void)luid, (void)mask, (void)dev;
	return CUDA_ERROR_NOT_SUPPORTED; /* of Windows only */
}

API CUresult cuDeviceCanAccessPeer(int *can, CUdevice dev, CUdevice peer)
{
	CUresult r = enter_device(__func__, dev, can);

	if (r != CUDA_SUCCESS)
		return r;
	if (!ordinal_valid(peer))
		return CUDA_ERROR_INVALID_DEVICE;
	*can = dev != peer && node_device(dev)->model.nvlink && node_device(peer)->model.nvlink;
	return CUDA_SUCCESS;
}

API CUresult cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attribute, CUdevice dev, CUdevice peer)
{
	CUresult r = enter_device(__func__, dev, value);

	if (r != CUDA_SUCCESS)
		return r;
	if (!ordinal_valid(peer) || dev == peer)
		return CUDA_ERROR_INVALID_DEVICE;
	if (attribute == CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK) {
		*value = 0;
		return CUDA_SUCCESS;
	}
	return cuDeviceCanAccessPeer(value, dev, peer);
}

API CUresult cuDeviceGetTexture1DLinearMaxWidth(size_t *elements, CUarray_format format, unsigned channels, CUdevice dev)
{
	CUresult r = enter_device(__func__, dev, elements);

	(void)format, (void)channels;
	if (r == CUDA_SUCCESS)
		*elements = 268435456;
	return r;
}

API CUresult cuDeviceGetExecAffinitySupport(int *supported, CUexecAffinityType type, CUdevice dev)
{
	CUresult r = enter_device(__func__, dev, supported);

	(void)type;
	if (r == CUDA_SUCCESS)
		*supported = 0;
	return r;
}

API CUresult cuFlushGPUDirectRDMAWrites(CUflushGPUDirectRDMAWritesTarget target, CUflushGPUDirectRDMAWritesScope scope)
{
	(void)target, (void)scope;
	return api_enter(__func__);
}

/* What does not differ between the models. */
static const struct {
	CUdevice_attribute attribute;
	int value;
} common[] = {
	{ CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024 },
	{ CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024 },
	{ CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024 },
	{ CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64 },
	{ CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 2147483647 },
	{ CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535 },
	{ CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535 },
	{ CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 49152 },
	{ CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 65536 },
	{ CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32 },
	{ CU_DEVICE_ATTRIBUTE_MAX_PITCH, 2147483647 },
	{ CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536 },
	{ CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, 512 },
	{ CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT, 32 },
	{ CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT, 512 },
	{ CU_DEVICE_ATTRIBUTE_GPU_OVERLAP, 1 },
	{ CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1 },
	{ CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, CU_COMPUTEMODE_DEFAULT },
	{ CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_WIDTH, 131072 },
	{ CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_WIDTH, 131072 },
	{ CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_HEIGHT, 65536 },
	{ CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH, 16384 },
	{ CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT, 16384 },
	{ CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH, 16384 },
	{ CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_WIDTH, 32768 },
	{ CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_HEIGHT, 32768 },
	{ CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_LAYERS, 2048 },
	{ CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1 },
	{ CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 3 },
	{ CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1 },
	{ CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1 },
	{ CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED, 1 },
	{ CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED, 1 },
	{ CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 65536 },
	{ CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1 },
	{ CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 1 },
	{ CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED, 1 },
	{ CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1 },
	{ CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 1 },
	{ CU_DEVICE_ATTRIBUTE_COOPERATIVE_MULTI_DEVICE_LAUNCH, 1 },
	{ CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1 },
	{ CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1 },
	{ CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1 },
	{ CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, 1024 },
	{ CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1 },
	{ CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, 1 },
	{ CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS, 1 },
	{ CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE, 0 },
	{ CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, 1 },
	{ CU_DEVICE_ATTRIBUTE_TIMELINE_SEMAPHORE_INTEROP_SUPPORTED, 0 },
	{ CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO, 2 },
};

API CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice dev)
{
	CUresult r = enter_device(__func__, dev, value);
	const struct sim_model *m;

	if (r != CUDA_SUCCESS)
		return r;
	if (attribute <= 0 || attribute >= CU_DEVICE_ATTRIBUTE_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	m = &node_device(dev)->model;
	for (size_t i = 0; i < sizeof(common) / sizeof(common[0]); i++) {
		if (common[i].attribute == attribute) {
			*value = common[i].value;
			return CUDA_SUCCESS;
		}
	}
	switch (attribute) {
	case CU_DEVICE_ATTRIBUTE_CLOCK_RATE:
		*value = (int)m->sm_khz;
		break;
	case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
		*value = (int)m->sms;
		break;
	case CU_DEVICE_ATTRIBUTE_ECC_ENABLED:
		*value = (int)m->ecc;
		break;
	case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
		*value = (int)node_device(dev)->pci_bus;
		break;
	case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE:
		*value = (int)m->memory_khz;
		break;
	case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH:
		*value = (int)m->bus_bits;
		break;
	case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE:
		*value = (int)m->l2_bytes;
		break;
	case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
		*value = (int)m->threads_per_sm;
		break;
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
		*value = (int)m->cc_major;
		break;
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
		*value = (int)m->cc_minor;
		break;
	case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
		*value = (int)m->shared_per_sm;
		break;
	case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
		*value = (int)m->shared_optin;
		break;
	case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR:
		*value = (int)m->blocks_per_sm;
		break;
	case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED:
		*value = (int)m->nvlink;
		break;
	case CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH:
	case CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT:
		*value = m->cc_major >= 9 ? 1 : 0;
		break;
	case CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES:
		*value = CU_MEM_HANDLE_TYPE_NONE;
		break;
	case CU_DEVICE_ATTRIBUTE_NUMA_ID:
		*value = node_device(dev)->numa_node;
		break;
	case CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID:
		*value = node_device(dev)->numa_node < 0 ? 0 : node_device(dev)->numa_node;
		break;
	default:
		*value = 0; /* not there, no such feature, domain and device number 0 */
	}
	return CUDA_SUCCESS;
}

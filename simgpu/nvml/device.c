/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated management library: properties of a device, and its sensors. */
#include "simgpu/nvml/device.h"

#include <stdio.h>
#include <string.h>

struct pci_info {
	char legacy_bus_id[16];
	unsigned domain, bus, device, device_id, subsystem_id;
	char bus_id[32];
};

struct pci_info_v2 {
	char bus_id[16];
	unsigned domain, bus, device, device_id, subsystem_id, reserved[4];
};

struct pci_info_ext {
	unsigned version, domain, bus, device, device_id, subsystem_id, base_class, sub_class;
	char bus_id[32];
};

struct bar1_memory {
	unsigned long long total_bytes, free_bytes, used_bytes;
};

static unsigned index_of(nvmlDevice_t device)
{
	return sim_card_index(sim_state(), device);
}

/* Only among the cards that this process may open. */
static unsigned position_of(nvmlDevice_t device)
{
	unsigned card[SIM_GPUS], cards = sim_cards(sim_state(), card), position = 0;

	while (position < cards && card[position] != index_of(device))
		position++;
	return position;
}

/* An idle card reports idleness; the knob sets any other reason for throttling. */
static uint64_t clock_reasons(nvmlDevice_t device)
{
	return nvml_at_gpu("throttle", device) | (nvml_busy_percent(device, -1) == 0 ? 1 : 0);
}

/* Calls that return one number fixed by the model: NUMBER(symbol, type, value). */
#define NUMBER(symbol, type, value)                                                                                    \
	NVML_API nvmlReturn_t symbol(nvmlDevice_t device, type *answer)                                                \
	{                                                                                                              \
		ENTER_DEVICE(device);                                                                                  \
		WANT(answer);                                                                                          \
		const struct sim_model *m = nvml_model(device);                                                        \
                                                                                                                       \
		(void)m;                                                                                               \
		*answer = (type)(value);                                                                               \
		return NVML_SUCCESS;                                                                                   \
	}

/* Calls that a model without the feature refuses. */
#define NUMBER_IF(feature, symbol, type, value)                                                                        \
	NVML_API nvmlReturn_t symbol(nvmlDevice_t device, type *answer)                                                \
	{                                                                                                              \
		ENTER_DEVICE(device);                                                                                  \
		WANT(answer);                                                                                          \
		const struct sim_model *m = nvml_model(device);                                                        \
                                                                                                                       \
		if (!(feature))                                                                                        \
			return NVML_ERROR_NOT_SUPPORTED;                                                               \
		*answer = (type)(value);                                                                               \
		return NVML_SUCCESS;                                                                                   \
	}

NUMBER(nvmlDeviceGetIndex, unsigned, position_of(device))
NUMBER(nvmlDeviceGetMinorNumber, unsigned, index_of(device))
NUMBER(nvmlDeviceGetModuleId, unsigned, index_of(device) + 1)
NUMBER(nvmlDeviceGetBoardId, unsigned, device->pci_bus << 8)
NUMBER(nvmlDeviceGetMultiGpuBoard, unsigned, 0)
NUMBER(nvmlDeviceGetBrand, unsigned, m->nvlink ? 14 /* data centre */ : 12 /* GeForce RTX */)
NUMBER(nvmlDeviceGetArchitecture, unsigned, m->cc_major == 9 ? 9 : m->cc_major == 7 ? 5 : m->cc_minor == 9 ? 8 : 7)
NUMBER(nvmlDeviceGetNumGpuCores, unsigned,
       m->sm_count *(m->cc_major < 8 || (m->cc_major == 8 && m->cc_minor == 0) ? 64 : 128))
NUMBER(nvmlDeviceGetMemoryBusWidth, unsigned, m->bus_width_bits)
NUMBER(nvmlDeviceGetComputeMode, unsigned, 0)
NUMBER(nvmlDeviceGetPersistenceMode, unsigned, 1)
NUMBER(nvmlDeviceGetDisplayMode, unsigned, 0)
NUMBER(nvmlDeviceGetDisplayActive, unsigned, 0)
NUMBER(nvmlDeviceGetPerformanceState, unsigned, 0)
NUMBER(nvmlDeviceGetPowerState, unsigned, 0)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, m->cc_major == 9 ? 5 : m->cc_major == 7 ? 3 : 4)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, m->cc_major == 9 ? 5 : m->cc_major == 7 ? 3 : 4)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, unsigned, 16)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, unsigned, 16)
NUMBER(nvmlDeviceGetPcieReplayCounter, unsigned, nvml_at_gpu("pcie_replay", device))
NUMBER(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, clock_reasons(device))
NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, clock_reasons(device))
NUMBER(nvmlDeviceGetSupportedClocksThrottleReasons, unsigned long long, 0x1ff)
NUMBER(nvmlDeviceGetSupportedClocksEventReasons, unsigned long long, 0x1ff)
NUMBER(nvmlDeviceGetSupportedEventTypes, unsigned long long, 8 /* critical XID */)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned, m->power_limit_mw)
NUMBER(nvmlDeviceGetPowerManagementLimit, unsigned, m->power_limit_mw)
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, unsigned, m->power_limit_mw)
NUMBER(nvmlDeviceGetPowerManagementMode, unsigned, 1)
/* A seventh of the limit when idle, the whole limit when busy. */
NUMBER(nvmlDeviceGetPowerUsage, unsigned,
       m->power_limit_mw / 7 + m->power_limit_mw / 7 * 6 / 100 * nvml_busy_percent(device, -1))
NUMBER_IF(m->ecc, nvmlDeviceGetDefaultEccMode, unsigned, 1)
NUMBER_IF(!m->nvlink, nvmlDeviceGetFanSpeed, unsigned, 30)
NUMBER_IF(!m->nvlink, nvmlDeviceGetNumFans, unsigned, 2)

NVML_API nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *text, unsigned bytes)
{
	ENTER_DEVICE(device);
	return nvml_text(text, bytes, nvml_model(device)->name);
}

NVML_API nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *text, unsigned bytes)
{
	char uuid[48];

	ENTER_DEVICE(device);
	const uint8_t *u = device->uuid;

	snprintf(uuid, sizeof(uuid), "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
	         device->card < 0 ? "GPU" : "MIG", u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10],
	         u[11], u[12], u[13], u[14], u[15]);
	return nvml_text(text, bytes, uuid);
}

NVML_API nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *text, unsigned bytes)
{
	char serial[16];

	ENTER_DEVICE(device);
	if (!nvml_model(device)->nvlink)
		return NVML_ERROR_NOT_SUPPORTED; /* consumer cards do not report it */
	snprintf(serial, sizeof(serial), "16500%05u", index_of(device) + 1);
	return nvml_text(text, bytes, serial);
}

nvmlReturn_t nvml_bus_id(nvmlDevice_t device, char *text, unsigned bytes)
{
	char id[32];

	snprintf(id, sizeof(id), "00000000:%02X:00.0", device->pci_bus);
	return nvml_text(text, bytes, id);
}

NVML_API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, struct pci_info *pci)
{
	ENTER_DEVICE(device);
	WANT(pci);
	*pci = (struct pci_info){ .bus = device->pci_bus, .device_id = nvml_model(device)->pci_device_id };
	nvml_bus_id(device, pci->bus_id, sizeof(pci->bus_id));
	memcpy(pci->legacy_bus_id, pci->bus_id + 4, strlen(pci->bus_id) - 3);
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, struct pci_info_v2 *pci)
{
	struct pci_info wide;

	WANT(pci);
	nvmlReturn_t r = nvmlDeviceGetPciInfo_v3(device, &wide);

	if (r != NVML_SUCCESS)
		return r;
	*pci = (struct pci_info_v2){ .bus = wide.bus, .device_id = wide.device_id };
	memcpy(pci->bus_id, wide.legacy_bus_id, sizeof(pci->bus_id));
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, struct pci_info_v2 *pci)
{
	return nvmlDeviceGetPciInfo_v2(device, pci);
}

NVML_API nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t device, struct pci_info_ext *pci)
{
	ENTER_DEVICE(device);
	WANT(pci);
	if (pci->version != (sizeof(*pci) | 1u << 24))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	pci->domain = pci->device = pci->subsystem_id = 0;
	pci->bus = device->pci_bus;
	pci->device_id = nvml_model(device)->pci_device_id;
	pci->base_class = 3; /* display */
	pci->sub_class = 2;  /* 3D controller */
	return nvml_bus_id(device, pci->bus_id, sizeof(pci->bus_id));
}

NVML_API nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
	ENTER_DEVICE(device);
	WANT(major && minor);
	*major = (int)nvml_model(device)->cc_major;
	*minor = (int)nvml_model(device)->cc_minor;
	return NVML_SUCCESS;
}

/* Two results at once: the current mode, and the mode after the next reboot. */
static nvmlReturn_t mode(nvmlDevice_t device, unsigned *current, unsigned *pending, bool supported, unsigned value)
{
	WANT(current && pending);
	if (!supported)
		return NVML_ERROR_NOT_SUPPORTED;
	*current = *pending = value;
	(void)device;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
	ENTER_DEVICE(device);
	return mode(device, current, pending, nvml_model(device)->ecc, 1);
}

static nvmlReturn_t clock_of(nvmlDevice_t device, unsigned type, unsigned *mhz)
{
	ENTER_DEVICE(device);
	WANT(mhz && type <= 3);
	/* graphics, SM, memory, video */
	*mhz = type == 2 ? nvml_model(device)->memory_clock_mhz : nvml_model(device)->sm_clock_mhz;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned type, unsigned *mhz)
{
	return clock_of(device, type, mhz);
}

NVML_API nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned type, unsigned *mhz)
{
	return clock_of(device, type, mhz);
}

NVML_API nvmlReturn_t nvmlDeviceGetApplicationsClock(nvmlDevice_t device, unsigned type, unsigned *mhz)
{
	return clock_of(device, type, mhz);
}

NVML_API nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned sensor, unsigned *celsius)
{
	ENTER_DEVICE(device);
	WANT(celsius && sensor == 0);
	*celsius = 32 + nvml_busy_percent(device, -1) * 35 / 100;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, unsigned which, unsigned *celsius)
{
	ENTER_DEVICE(device);
	WANT(celsius);
	*celsius = which == 0 ? 92 : 87; /* shutdown, slow-down and others */
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *mj)
{
	ENTER_DEVICE(device);
	WANT(mj);
	uint64_t limit_mw = nvml_model(device)->power_limit_mw;

	sim_lock(device);
	const struct sim_schedule *s = sim_advance(sim_state(), device);
	/* since the machine started, as on a card: idle power all the time, the rest while busy */
	*mj = s->now_ns / 1000000 * (limit_mw / 7) / 1000 + s->busy_ns / 1000000 * (limit_mw / 7 * 6) / 1000;
	sim_unlock(device);
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned *least, unsigned *most)
{
	ENTER_DEVICE(device);
	WANT(least && most);
	*least = nvml_model(device)->power_limit_mw / 3;
	*most = nvml_model(device)->power_limit_mw;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned link, unsigned *active)
{
	ENTER_DEVICE(device);
	WANT(active && link < 18);
	if (!nvml_model(device)->nvlink)
		return NVML_ERROR_NOT_SUPPORTED;
	*active = 1;
	return NVML_SUCCESS;
}

/* As in an HGX board: every link goes to one of four switches, by which every card reaches every other. */
NVML_API nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned link, unsigned *type)
{
	enum { SWITCH = 2 };

	ENTER_DEVICE(device);
	WANT(type && link < 18);
	if (!nvml_model(device)->nvlink)
		return NVML_ERROR_NOT_SUPPORTED;
	*type = SWITCH;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned link, struct pci_info *pci)
{
	ENTER_DEVICE(device);
	WANT(pci && link < 18);
	if (!nvml_model(device)->nvlink)
		return NVML_ERROR_NOT_SUPPORTED;
	*pci = (struct pci_info){ .bus = 0xf0 + link % 4 };
	snprintf(pci->bus_id, sizeof(pci->bus_id), "00000000:%02X:00.0", pci->bus);
	memcpy(pci->legacy_bus_id, pci->bus_id + 4, strlen(pci->bus_id) - 3);
	return NVML_SUCCESS;
}

/* Supported only where the memory of a card is a NUMA node by itself, as on Grace. */
NVML_API nvmlReturn_t nvmlDeviceGetNumaNodeId(nvmlDevice_t device, const unsigned *node)
{
	ENTER_DEVICE(device);
	WANT(node);
	return NVML_ERROR_NOT_SUPPORTED;
}

/* In both scopes: each socket of the simulated machine has one NUMA node. */
NVML_API nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned words, unsigned long *nodes,
                                                  unsigned scope)
{
	enum { NODE, SOCKET };

	ENTER_DEVICE(device);
	WANT(words && nodes && scope <= SOCKET);
	memset(nodes, 0, words * sizeof(*nodes));
	nodes[0] = 1ul << device->numa_node;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t a, nvmlDevice_t b, unsigned *level)
{
	ENTER_DEVICE(a);
	ENTER_DEVICE(b);
	WANT(level);
	*level = a == b ? 0 : a->numa_node == b->numa_node ? 40 : 50; /* itself, one node, the system */
	return NVML_SUCCESS;
}

/* Reads and writes between cards are always supported, NVLink and atomics where there are links. */
NVML_API nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t a, nvmlDevice_t b, unsigned which, unsigned *status)
{
	enum { READ, WRITE, NVLINK, ATOMICS, PCI, UNKNOWN };
	enum { FINE = 0, NOT_SUPPORTED = 3 };

	ENTER_DEVICE(a);
	ENTER_DEVICE(b);
	WANT(status && which < UNKNOWN && a != b);
	if (a->card >= 0 || b->card >= 0)
		return NVML_ERROR_NOT_SUPPORTED; /* an instance has no link to another */
	bool links = nvml_model(a)->nvlink && nvml_model(b)->nvlink;

	*status = which == READ || which == WRITE || (links && which != PCI) || (!links && which == PCI)
	                  ? FINE
	                  : NOT_SUPPORTED;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, struct bar1_memory *memory)
{
	ENTER_DEVICE(device);
	WANT(memory);
	*memory = (struct bar1_memory){ .total_bytes = UINT64_C(128) << 30, .free_bytes = UINT64_C(128) << 30 };
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned type, unsigned counter,
                                                  unsigned long long *errors)
{
	ENTER_DEVICE(device);
	WANT(errors && type < 2 && counter < 2);
	*errors = nvml_at_gpu(type ? "ecc_uncorrected" : "ecc_corrected", device);
	return nvml_model(device)->ecc ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

NVML_API nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned *correctable, unsigned *uncorrectable,
                                                unsigned *pending, unsigned *failed)
{
	ENTER_DEVICE(device);
	WANT(correctable && uncorrectable && pending && failed);
	if (!nvml_model(device)->ecc || nvml_model(device)->cc_major < 8)
		return NVML_ERROR_NOT_SUPPORTED;
	*correctable = (unsigned)nvml_at_gpu("row_remap_correctable", device);
	*uncorrectable = (unsigned)nvml_at_gpu("row_remap_uncorrectable", device);
	*pending = (unsigned)nvml_at_gpu("row_remap_pending", device);
	*failed = (unsigned)nvml_at_gpu("row_remap_failed", device);
	return NVML_SUCCESS;
}

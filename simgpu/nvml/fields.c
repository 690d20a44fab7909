/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated management library: figures by field number, performance monitoring (GPM), and fault counters. The
 * control file sets a counter, `ecc_uncorrected=3@0,1@2`: values at GPUs.
 */
#include <stdlib.h>
#include <string.h>

#include "simgpu/nvml/nvml.h"

enum field {
	ECC_CORRECTED = 3,
	ECC_UNCORRECTED = 4,
	ECC_CORRECTED_EVER = 5,
	ECC_UNCORRECTED_EVER = 6,
	MEMORY_TEMPERATURE = 82,
	ENERGY_MJ = 83,
	NVLINK_COUNT = 91,
	PCIE_REPLAYS = 94,
	NVLINK_TX_KIB = 138,
	NVLINK_RX_KIB = 139,
	REMAPPED_CORRECTABLE = 142,
	REMAPPED_UNCORRECTABLE = 143,
	REMAP_PENDING = 144,
	REMAP_FAILED = 145,
	RECOVERY_ACTION = 230,
};

struct field_value {
	uint32_t field, scope;
	int64_t at_us, latency_us;
	uint32_t value_type, result;
	union {
		double real;
		uint32_t number;
		uint64_t wide;
	} value;
};

/* nvmlValueType_t */
enum { TYPE_UINT = 1, TYPE_ULONG_LONG = 3 };

nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *mj);

static bool has_spare_rows(const struct sim_model *m)
{
	return m->ecc && m->cc_major >= 8;
}

static nvmlReturn_t read_field(nvmlDevice_t device, struct field_value *f)
{
	const struct sim_model *m = nvml_model(device);
	bool supported = true;
	unsigned long long wide = 0;

	f->value_type = TYPE_ULONG_LONG;
	switch (f->field) {
	case ECC_CORRECTED:
	case ECC_CORRECTED_EVER:
		supported = m->ecc;
		wide = nvml_at_gpu("ecc_corrected", device);
		break;
	case ECC_UNCORRECTED:
	case ECC_UNCORRECTED_EVER:
		supported = m->ecc;
		wide = nvml_at_gpu("ecc_uncorrected", device);
		break;
	case MEMORY_TEMPERATURE:
		supported = m->ecc && m->cc_major >= 8; /* HBM2e and later */
		wide = 36 + nvml_busy_percent(device, -1) * 40 / 100;
		f->value_type = TYPE_UINT;
		break;
	case ENERGY_MJ: {
		nvmlReturn_t r = nvmlDeviceGetTotalEnergyConsumption(device, &wide);

		if (r != NVML_SUCCESS)
			return r;
		break;
	}
	case NVLINK_COUNT:
		wide = m->nvlink ? 18 : 0;
		f->value_type = TYPE_UINT;
		break;
	case PCIE_REPLAYS:
		wide = nvml_at_gpu("pcie_replay", device);
		f->value_type = TYPE_UINT;
		break;
	case NVLINK_TX_KIB:
	case NVLINK_RX_KIB:
		supported = m->nvlink;
		wide = nvml_at_gpu("nvlink_kib", device);
		break;
	case REMAPPED_CORRECTABLE:
	case REMAPPED_UNCORRECTABLE:
	case REMAP_PENDING:
	case REMAP_FAILED: {
		static const char *const knobs[] = { "row_remap_correctable", "row_remap_uncorrectable",
			                             "row_remap_pending", "row_remap_failed" };

		supported = has_spare_rows(m);
		wide = nvml_at_gpu(knobs[f->field - REMAPPED_CORRECTABLE], device);
		f->value_type = TYPE_UINT;
		break;
	}
	case RECOVERY_ACTION:
		supported = m->cc_major >= 8 && m->nvlink;
		wide = nvml_at_gpu("recovery_action", device);
		f->value_type = TYPE_UINT;
		break;
	default:
		supported = false;
	}
	if (!supported)
		return NVML_ERROR_NOT_SUPPORTED;
	f->value.wide = wide; /* little endian: the narrow values are its low half */
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, struct field_value *values)
{
	ENTER_DEVICE(device);
	WANT(values && count > 0);
	for (int i = 0; i < count; i++) {
		values[i].at_us = (int64_t)nvml_now_us();
		values[i].latency_us = 0;
		values[i].result = read_field(device, &values[i]);
	}
	return NVML_SUCCESS;
}

/* --- performance monitoring --------------------------------------------------------------------------------------- */

struct gpm_support {
	unsigned version, supported;
};

/* The contents of a sample: the device's clock, and its busy time. */
struct gpm_sample {
	uint64_t now_ns, busy_ns;
};

struct gpm_metric {
	unsigned id, result;
	double value;
	const char *short_name, *long_name, *unit;
};

struct gpm_get {
	unsigned version, count;
	struct gpm_sample *first, *second;
	struct gpm_metric metric[];
};

enum gpm_id {
	GPM_GRAPHICS = 1,
	GPM_SM = 2,
	GPM_OCCUPANCY = 3,
	GPM_TENSOR = 5,
	GPM_DRAM = 10,
	GPM_PCIE_TX = 20,
	GPM_PCIE_RX = 21,
	GPM_NVLINK_RX = 60,
	GPM_NVLINK_TX = 61,
};

static bool has_gpm(nvmlDevice_t device)
{
	return nvml_model(device)->cc_major >= 9;
}

NVML_API nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, struct gpm_support *support)
{
	ENTER_DEVICE(device);
	WANT(support);
	if (support->version != 1)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	support->supported = has_gpm(device);
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlGpmSampleAlloc(struct gpm_sample **sample)
{
	ENTER();
	WANT(sample);
	*sample = calloc(1, sizeof(**sample));
	return *sample ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}

NVML_API nvmlReturn_t nvmlGpmSampleFree(struct gpm_sample *sample)
{
	ENTER();
	free(sample);
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, struct gpm_sample *sample)
{
	ENTER_DEVICE(device);
	WANT(sample);
	if (!has_gpm(device))
		return NVML_ERROR_NOT_SUPPORTED;
	sim_lock(device);
	const struct sim_schedule *s = sim_advance(sim_state(), device);

	*sample = (struct gpm_sample){ s->now_ns, s->busy_ns };
	sim_unlock(device);
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlGpmMetricsGet(struct gpm_get *get)
{
	ENTER();
	WANT(get && get->first && get->second);
	if (get->version != 1)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	uint64_t elapsed_ns = get->second->now_ns - get->first->now_ns;

	WANT(get->second->now_ns > get->first->now_ns);
	double busy_percent = 100.0 * (double)(get->second->busy_ns - get->first->busy_ns) / (double)elapsed_ns;

	for (unsigned i = 0; i < get->count; i++) {
		struct gpm_metric *m = &get->metric[i];

		m->result = NVML_SUCCESS;
		switch (m->id) {
		case GPM_GRAPHICS:
		case GPM_SM:
			m->value = busy_percent;
			break;
		case GPM_OCCUPANCY:
		case GPM_DRAM: /* a kernel that half saturates the memory, and half fills the SMs */
			m->value = busy_percent / 2;
			break;
		case GPM_TENSOR:
		case GPM_PCIE_TX:
		case GPM_PCIE_RX:
		case GPM_NVLINK_RX:
		case GPM_NVLINK_TX:
			m->value = 0;
			break;
		default:
			m->result = NVML_ERROR_NOT_SUPPORTED;
		}
	}
	return NVML_SUCCESS;
}

/* --- licences ----------------------------------------------------------------------------------------------------- */

/* The beginning of the structure; only a virtual card has a licence. */
struct licensable_features {
	int supported;
	unsigned count;
};

NVML_API nvmlReturn_t nvmlDeviceGetGridLicensableFeatures_v4(nvmlDevice_t device, struct licensable_features *features)
{
	ENTER_DEVICE(device);
	WANT(features);
	*features = (struct licensable_features){ 0 };
	return NVML_SUCCESS;
}

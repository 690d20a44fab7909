"""Counters that NVML gives by field number, many in one call (`nvmlDeviceGetFieldValues`)."""

from __future__ import annotations

from typing import Any, Final

from nodeagent.adapters.nvml.binding import pynvml

ALL_LINKS: Final = 0xFFFFFFFF
"""Scope of an NVLink field: all links together."""
_KIB: Final = 1024
_FIELDS: Final = {
    "ecc_corrected_total": pynvml.NVML_FI_DEV_ECC_SBE_VOL_TOTAL,
    "ecc_uncorrected_total": pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL,
    "memory_temperature_celsius": pynvml.NVML_FI_DEV_MEMORY_TEMP,
    "energy_joules_total": pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION,
    "pcie_replay_total": pynvml.NVML_FI_DEV_PCIE_REPLAY_COUNTER,
    "row_remap_correctable_total": pynvml.NVML_FI_DEV_REMAPPED_COR,
    "row_remap_uncorrectable_total": pynvml.NVML_FI_DEV_REMAPPED_UNC,
    "row_remap_pending": pynvml.NVML_FI_DEV_REMAPPED_PENDING,
    "row_remap_failed": pynvml.NVML_FI_DEV_REMAPPED_FAILURE,
    "nvlink_tx_bytes_total": (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ALL_LINKS),
    "nvlink_rx_bytes_total": (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, ALL_LINKS),
}
_MEMBERS: Final = {
    pynvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
}


def counters(handle: Any) -> dict[str, Any]:
    """Values of GpuReading by its field names; None where this card has none. Older drivers refuse
    a list with one unknown field in it, so then each field is read alone."""
    try:
        found = pynvml.nvmlDeviceGetFieldValues(handle, list(_FIELDS.values()))
        raw = [_value(value) for value in found]
    except pynvml.NVMLError:
        raw = [_alone(handle, field) for field in _FIELDS.values()]
    values: dict[str, Any] = dict(zip(_FIELDS, raw, strict=True))
    for name in ("row_remap_pending", "row_remap_failed"):
        values[name] = None if values[name] is None else bool(values[name])
    for name in ("nvlink_tx_bytes_total", "nvlink_rx_bytes_total"):
        values[name] = None if values[name] is None else int(values[name]) * _KIB
    energy_mj, celsius = values["energy_joules_total"], values["memory_temperature_celsius"]
    values["energy_joules_total"] = None if energy_mj is None else energy_mj / 1000
    # Some cards without the sensor report 0 °C.
    values["memory_temperature_celsius"] = float(celsius) if celsius else None
    return values


def recovery_action(handle: Any) -> int:
    """NVML's number for the recovery action that it recommends. Raises pynvml.NVMLError."""
    field = pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
    (value,) = pynvml.nvmlDeviceGetFieldValues(handle, [field])
    if value.nvmlReturn != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(value.nvmlReturn)
    return int(value.value.uiVal)


def _alone(handle: Any, field: Any) -> int | float | None:
    try:
        (value,) = pynvml.nvmlDeviceGetFieldValues(handle, [field])
    except pynvml.NVMLError:
        return None
    return _value(value)


def _value(value: Any) -> int | float | None:
    member = _MEMBERS.get(value.valueType)
    if value.nvmlReturn != pynvml.NVML_SUCCESS or member is None:
        return None
    number: int | float = getattr(value.value, member)
    return number

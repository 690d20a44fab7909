"""NVML's GPU performance monitoring: utilization of a GPU's parts between two sweeps.

Available on Hopper and later, without special permission and without DCGM. The two samples per GPU
live as long as the reader process.
"""

from __future__ import annotations

from typing import Any, Final

from nodeagent.adapters.nvml.binding import pynvml
from nodeagent.ports.gpus import ProfileReading

_MIB: Final = 1 << 20
_METRICS: Final = {
    "graphics_active_ratio": (pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL, 0.01),
    "sm_active_ratio": (pynvml.NVML_GPM_METRIC_SM_UTIL, 0.01),
    "sm_occupancy_ratio": (pynvml.NVML_GPM_METRIC_SM_OCCUPANCY, 0.01),
    "tensor_active_ratio": (pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL, 0.01),
    "dram_active_ratio": (pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL, 0.01),
    "pcie_tx_bytes_per_s": (pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC, _MIB),
    "pcie_rx_bytes_per_s": (pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC, _MIB),
    "nvlink_tx_bytes_per_s": (pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC, _MIB),
    "nvlink_rx_bytes_per_s": (pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC, _MIB),
}
"""NVML's metric and the factor to base units, by field of ProfileReading."""


class Profiler:
    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._samples = [pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()]
        self._taken = False

    @staticmethod
    def of(handle: Any) -> Profiler | None:
        """A profiler for a card; None if the card has no GPM. Raises pynvml.NVMLError."""
        supported = pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice
        return Profiler(handle) if supported else None

    def read(self) -> ProfileReading | None:
        """Averages since the last call; None at the first call and where the samples are too close
        together."""
        before, now = self._samples
        try:
            pynvml.nvmlGpmSampleGet(self._handle, now)
            if not self._taken:
                self._taken = True
                self._samples.reverse()
                return None
            request = pynvml.c_nvmlGpmMetricsGet_t()
            request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
            request.numMetrics = len(_METRICS)
            request.sample1, request.sample2 = before, now
            for place, (number, _factor) in enumerate(_METRICS.values()):
                request.metrics[place].metricId = number
            pynvml.nvmlGpmMetricsGet(request)
        except pynvml.NVMLError:
            return None
        self._samples.reverse()
        values = {}
        for place, (name, (_number, factor)) in enumerate(_METRICS.items()):
            metric = request.metrics[place]
            good = metric.nvmlReturn == pynvml.NVML_SUCCESS
            value = metric.value * factor if good else None
            if value is not None and name.endswith("_ratio"):
                value = min(1.0, value)
            values[name] = value
        return ProfileReading(**values)

"""Our own metrics of one node, from its view."""

from __future__ import annotations

from collections.abc import Mapping

from nodeagent.core.gpus.health import OFFERED, Health
from nodeagent.core.metrics import catalogue as m
from nodeagent.core.metrics.histogram import Histogram
from nodeagent.ports.gpus import GpuReading
from nodeagent.ports.views import GpuView, GrantView, NodeView, QueueView, Samples
from sluicecommon.metric import Metric
from sluicecommon.prometheus import Exposition


def fill(samples: Exposition, view: NodeView, histograms: Mapping[Metric, Histogram]) -> None:
    samples.add(m.BUILD_INFO, (view.version,), 1)
    for loop in view.loops:
        samples.add(m.LOOP_LAST_OK, (loop.name,), loop.last_ok_unix_s)
    samples.add(m.GRANTS_WAITING, (), view.waiting)
    samples.add(m.NVML_AGE, (), view.reading_age_s)
    samples.add(m.NVML_RESTARTS, (), view.nvml_restarts_total)
    _counters(samples, view.counters)
    if view.queue is not None:
        _queue(samples, view.queue)
    for rule, count in view.detections.items():
        samples.add(m.DETECTIONS, (rule,), count)
    for rule, count in view.suspicions.items():
        samples.add(m.SUSPICIONS, (rule,), count)
    for step, count in view.acts.items():
        samples.add(m.ACTS, (step,), count)
    for step, count in view.held.items():
        samples.add(m.CONTAINED, (step,), count)
    if view.host is not None:
        samples.add(m.HOST_MEMORY, (), view.host.memory_bytes)
        samples.add(m.HOST_MEMORY_AVAILABLE, (), view.host.memory_available_bytes)
        samples.add(m.HOST_CPUS, (), view.host.cpus)
        samples.add(m.HOST_LOAD, (), view.host.load_average)
        for one in view.host.processes:
            samples.add(m.OWN_MEMORY, (one.name,), one.resident_bytes)
            samples.add(m.OWN_CPU, (one.name,), one.cpu_seconds_total)
    for metric, histogram in histograms.items():
        samples.add_histogram(metric, (), histogram)
    for gpu in view.gpus:
        _gpu(samples, gpu)
    for reading in view.readings:
        _reading(samples, reading)
        labels = (reading.uuid, str(reading.index))
        for code, count in sorted(view.xids.get(reading.uuid, {}).items()):
            samples.add(m.GPU_XIDS, (*labels, str(code)), count)
    for grant in view.grants:
        _grant(samples, grant)


def _counters(samples: Exposition, counters: Samples) -> None:
    for metric, found in counters.items():
        if isinstance(found, Mapping):
            for label, value in found.items():
                samples.add(metric, (label,), value)
        else:
            samples.add(metric, (), found)


def _queue(samples: Exposition, queue: QueueView) -> None:
    samples.add(m.QUEUE_CONNECTED, (), int(queue.connected))
    samples.add(m.QUEUE_SESSION_AGE, (), queue.session_s)
    samples.add(m.QUEUE_SILENT, (), queue.silent_s)
    samples.add(m.QUEUE_LEASE, (), queue.lease_left_s)
    samples.add(m.QUEUE_TERM, (), queue.term)
    samples.add(m.QUEUE_REVISION, (), queue.revision)
    samples.add(m.QUEUE_SESSIONS, (), queue.sessions_total)
    samples.add(m.QUEUE_FENCED, (), queue.fenced_total)
    for state, count in queue.works.items():
        samples.add(m.QUEUE_DECISIONS, (state,), count)
    samples.add(m.QUEUE_WAITING, (), queue.waiting)


def _gpu(samples: Exposition, gpu: GpuView) -> None:
    labels = (gpu.uuid, str(gpu.index))
    samples.add(m.GPU_INFO, (*labels, gpu.name, gpu.pci_bus_id or ""), 1)
    samples.add(m.GPU_HEALTHY, labels, int(Health(gpu.health) in OFFERED))
    for state in Health:
        samples.add(m.GPU_HEALTH_STATE, (*labels, state.value), int(state.value == gpu.health))
    samples.add(m.GPU_HEALTH_CHANGES, labels, gpu.health_changes_total)
    samples.add(m.GPU_MEMORY, labels, gpu.memory_total_bytes)
    samples.add(m.GPU_MEMORY_USED, labels, gpu.memory_used_bytes)
    samples.add(m.GPU_MEMORY_GRANTED, labels, gpu.memory_granted_bytes)
    samples.add(m.GPU_SM_GRANTED, labels, gpu.share_granted_ratio)
    samples.add(m.GPU_UTILIZATION, labels, gpu.utilization_ratio)
    samples.add(m.GPU_TEMPERATURE, labels, gpu.temperature_celsius)
    samples.add(m.GPU_GRANTS, labels, gpu.grants)
    samples.add(m.GPU_SLOTS, labels, gpu.slots)


def _reading(samples: Exposition, gpu: GpuReading) -> None:
    labels = (gpu.uuid, str(gpu.index))
    samples.add(m.GPU_MEMORY_RESERVED, labels, gpu.memory_reserved_bytes)
    samples.add(m.GPU_MEMORY_UTILIZATION, labels, gpu.memory_utilization_ratio)
    samples.add(m.GPU_CODEC, (*labels, "encoder"), gpu.encoder_ratio)
    samples.add(m.GPU_CODEC, (*labels, "decoder"), gpu.decoder_ratio)
    samples.add(m.GPU_MEMORY_TEMPERATURE, labels, gpu.memory_temperature_celsius)
    samples.add(m.GPU_CLOCK, (*labels, "sm"), gpu.sm_clock_hz)
    samples.add(m.GPU_CLOCK, (*labels, "memory"), gpu.memory_clock_hz)
    samples.add(m.GPU_POWER_LIMIT, labels, gpu.power_limit_watts)
    samples.add(m.GPU_ENERGY, labels, gpu.energy_joules_total)
    for reason in gpu.throttle_reasons or ():
        samples.add(m.GPU_THROTTLED, (*labels, reason), 1)
    samples.add(m.GPU_ECC_ERRORS, (*labels, "corrected"), gpu.ecc_corrected_total)
    samples.add(m.GPU_ECC_ERRORS, (*labels, "uncorrected"), gpu.ecc_uncorrected_total)
    samples.add(m.GPU_ROW_REMAPS, (*labels, "correctable"), gpu.row_remap_correctable_total)
    samples.add(m.GPU_ROW_REMAPS, (*labels, "uncorrectable"), gpu.row_remap_uncorrectable_total)
    samples.add(m.GPU_ROW_REMAP_PENDING, labels, _flag(gpu.row_remap_pending))
    samples.add(m.GPU_ROW_REMAP_FAILED, labels, _flag(gpu.row_remap_failed))
    samples.add(m.GPU_PCIE_REPLAYS, labels, gpu.pcie_replay_total)
    samples.add(m.GPU_NVLINK_BYTES, (*labels, "tx"), gpu.nvlink_tx_bytes_total)
    samples.add(m.GPU_NVLINK_BYTES, (*labels, "rx"), gpu.nvlink_rx_bytes_total)
    samples.add(m.GPU_NVLINKS, labels, gpu.nvlinks_active)
    samples.add(m.GPU_PROCESSES, labels, len(gpu.processes))
    profile = gpu.profile
    if profile is not None:
        samples.add(m.GPU_ACTIVE, (*labels, "graphics"), profile.graphics_active_ratio)
        samples.add(m.GPU_ACTIVE, (*labels, "sm"), profile.sm_active_ratio)
        samples.add(m.GPU_ACTIVE, (*labels, "occupancy"), profile.sm_occupancy_ratio)
        samples.add(m.GPU_ACTIVE, (*labels, "tensor"), profile.tensor_active_ratio)
        samples.add(m.GPU_ACTIVE, (*labels, "dram"), profile.dram_active_ratio)
        samples.add(m.GPU_PCIE_RATE, (*labels, "tx"), profile.pcie_tx_bytes_per_s)
        samples.add(m.GPU_PCIE_RATE, (*labels, "rx"), profile.pcie_rx_bytes_per_s)
    samples.add(m.GPU_POWER, labels, gpu.power_watts)
    for mig in gpu.mig or ():
        instances = (str(mig.gpu_instance), str(mig.compute_instance))
        samples.add(m.GPU_MIG_INFO, (*labels, mig.uuid, mig.profile, *instances), 1)


def _grant(samples: Exposition, grant: GrantView) -> None:
    own = (grant.grant, grant.name)
    samples.add(m.GRANT_INFO, (*own, grant.policy.value, grant.state, str(grant.uid)), 1)
    samples.add(m.GRANT_PROCESSES, own, grant.processes)
    samples.add(m.GRANT_TAMPERS, own, grant.tamper_events_total)
    for device in grant.devices:
        labels = (*own, device.gpu)
        samples.add(m.GRANT_MEMORY_LIMIT, labels, device.memory_limit_bytes)
        samples.add(m.GRANT_MEMORY_USED, labels, device.memory_used_bytes)
        samples.add(m.GRANT_MEMORY_PEAK, labels, device.memory_peak_bytes)
        samples.add(m.GRANT_SM_LIMIT, labels, device.share_ratio)
        samples.add(m.GRANT_SM_USED, labels, device.used_ratio)
        samples.add(m.GRANT_BUSY, labels, device.busy_seconds_total)
        samples.add(m.GRANT_THROTTLED, labels, device.throttled_seconds_total)
        samples.add(m.GRANT_LAUNCHES, labels, device.launches_total)
        samples.add(m.GRANT_ALLOCATIONS, labels, device.allocations_total)
        samples.add(m.GRANT_DENIED, labels, device.denied_total)


def _flag(value: bool | None) -> int | None:
    return None if value is None else int(value)

"""Our own metrics of one node, from its view."""

from __future__ import annotations

from collections.abc import Mapping

from nodeagent.core.gpus.health import OFFERED, Health
from nodeagent.core.metrics import catalogue as m
from nodeagent.core.metrics.exposition import Page
from nodeagent.core.metrics.histogram import Histogram
from nodeagent.ports.gpus import GpuReading
from nodeagent.ports.views import GpuView, GrantView, NodeView, QueueView, Samples
from sluicecommon.metric import Metric


def fill(page: Page, view: NodeView, histograms: Mapping[Metric, Histogram]) -> None:
    page.add(m.BUILD_INFO, (view.version,), 1)
    for loop in view.loops:
        page.add(m.LOOP_LAST_OK, (loop.name,), loop.last_ok_unix_s)
    page.add(m.GRANTS_WAITING, (), view.waiting)
    page.add(m.NVML_AGE, (), view.reading_age_s)
    page.add(m.NVML_RESTARTS, (), view.nvml_restarts_total)
    _counters(page, view.counters)
    if view.queue is not None:
        _queue(page, view.queue)
    for rule, count in view.detections.items():
        page.add(m.DETECTIONS, (rule,), count)
    for rule, count in view.suspicions.items():
        page.add(m.SUSPICIONS, (rule,), count)
    for step, count in view.acts.items():
        page.add(m.ACTS, (step,), count)
    for step, count in view.held.items():
        page.add(m.CONTAINED, (step,), count)
    if view.host is not None:
        page.add(m.HOST_MEMORY, (), view.host.memory_bytes)
        page.add(m.HOST_MEMORY_AVAILABLE, (), view.host.memory_available_bytes)
        page.add(m.HOST_CPUS, (), view.host.cpus)
        page.add(m.HOST_LOAD, (), view.host.load_average)
        for one in view.host.processes:
            page.add(m.OWN_MEMORY, (one.name,), one.resident_bytes)
            page.add(m.OWN_CPU, (one.name,), one.cpu_seconds_total)
    for metric, histogram in histograms.items():
        page.add_histogram(metric, (), histogram)
    for gpu in view.gpus:
        _gpu(page, gpu)
    for reading in view.readings:
        _reading(page, reading)
        labels = (reading.uuid, str(reading.index))
        for code, count in sorted(view.xids.get(reading.uuid, {}).items()):
            page.add(m.GPU_XIDS, (*labels, str(code)), count)
    for grant in view.grants:
        _grant(page, grant)


def _counters(page: Page, counters: Samples) -> None:
    for metric, found in counters.items():
        if isinstance(found, Mapping):
            for label, value in found.items():
                page.add(metric, (label,), value)
        else:
            page.add(metric, (), found)


def _queue(page: Page, queue: QueueView) -> None:
    page.add(m.QUEUE_CONNECTED, (), int(queue.connected))
    page.add(m.QUEUE_SESSION_AGE, (), queue.session_s)
    page.add(m.QUEUE_SILENT, (), queue.silent_s)
    page.add(m.QUEUE_LEASE, (), queue.lease_left_s)
    page.add(m.QUEUE_TERM, (), queue.term)
    page.add(m.QUEUE_REVISION, (), queue.revision)
    page.add(m.QUEUE_SESSIONS, (), queue.sessions_total)
    page.add(m.QUEUE_FENCED, (), queue.fenced_total)
    for state, count in queue.works.items():
        page.add(m.QUEUE_DECISIONS, (state,), count)
    page.add(m.QUEUE_WAITING, (), queue.waiting)


def _gpu(page: Page, gpu: GpuView) -> None:
    labels = (gpu.uuid, str(gpu.index))
    page.add(m.GPU_INFO, (*labels, gpu.name, gpu.pci_bus_id or ""), 1)
    page.add(m.GPU_HEALTHY, labels, int(Health(gpu.health) in OFFERED))
    for state in Health:
        page.add(m.GPU_HEALTH_STATE, (*labels, state.value), int(state.value == gpu.health))
    page.add(m.GPU_HEALTH_CHANGES, labels, gpu.health_changes_total)
    page.add(m.GPU_MEMORY, labels, gpu.memory_total_bytes)
    page.add(m.GPU_MEMORY_USED, labels, gpu.memory_used_bytes)
    page.add(m.GPU_MEMORY_GRANTED, labels, gpu.memory_granted_bytes)
    page.add(m.GPU_SM_GRANTED, labels, gpu.share_granted_ratio)
    page.add(m.GPU_UTILIZATION, labels, gpu.utilization_ratio)
    page.add(m.GPU_TEMPERATURE, labels, gpu.temperature_celsius)
    page.add(m.GPU_POWER, labels, gpu.power_watts)
    page.add(m.GPU_GRANTS, labels, gpu.grants)
    page.add(m.GPU_SLOTS, labels, gpu.slots)


def _reading(page: Page, gpu: GpuReading) -> None:
    labels = (gpu.uuid, str(gpu.index))
    page.add(m.GPU_MEMORY_RESERVED, labels, gpu.memory_reserved_bytes)
    page.add(m.GPU_MEMORY_UTILIZATION, labels, gpu.memory_utilization_ratio)
    page.add(m.GPU_CODEC, (*labels, "encoder"), gpu.encoder_ratio)
    page.add(m.GPU_CODEC, (*labels, "decoder"), gpu.decoder_ratio)
    page.add(m.GPU_MEMORY_TEMPERATURE, labels, gpu.memory_temperature_celsius)
    page.add(m.GPU_CLOCK, (*labels, "sm"), gpu.sm_clock_hz)
    page.add(m.GPU_CLOCK, (*labels, "memory"), gpu.memory_clock_hz)
    page.add(m.GPU_POWER_LIMIT, labels, gpu.power_limit_watts)
    page.add(m.GPU_ENERGY, labels, gpu.energy_joules_total)
    for reason in gpu.throttle_reasons or ():
        page.add(m.GPU_THROTTLED, (*labels, reason), 1)
    page.add(m.GPU_ECC_ERRORS, (*labels, "corrected"), gpu.ecc_corrected_total)
    page.add(m.GPU_ECC_ERRORS, (*labels, "uncorrected"), gpu.ecc_uncorrected_total)
    page.add(m.GPU_ROW_REMAPS, (*labels, "correctable"), gpu.row_remap_correctable_total)
    page.add(m.GPU_ROW_REMAPS, (*labels, "uncorrectable"), gpu.row_remap_uncorrectable_total)
    page.add(m.GPU_ROW_REMAP_PENDING, labels, _flag(gpu.row_remap_pending))
    page.add(m.GPU_ROW_REMAP_FAILED, labels, _flag(gpu.row_remap_failed))
    page.add(m.GPU_PCIE_REPLAYS, labels, gpu.pcie_replay_total)
    page.add(m.GPU_NVLINK_BYTES, (*labels, "tx"), gpu.nvlink_tx_bytes_total)
    page.add(m.GPU_NVLINK_BYTES, (*labels, "rx"), gpu.nvlink_rx_bytes_total)
    page.add(m.GPU_NVLINKS, labels, gpu.nvlinks_active)
    page.add(m.GPU_PROCESSES, labels, len(gpu.processes))
    profile = gpu.profile
    if profile is not None:
        page.add(m.GPU_ACTIVE, (*labels, "graphics"), profile.graphics_active_ratio)
        page.add(m.GPU_ACTIVE, (*labels, "sm"), profile.sm_active_ratio)
        page.add(m.GPU_ACTIVE, (*labels, "occupancy"), profile.sm_occupancy_ratio)
        page.add(m.GPU_ACTIVE, (*labels, "tensor"), profile.tensor_active_ratio)
        page.add(m.GPU_ACTIVE, (*labels, "dram"), profile.dram_active_ratio)
        page.add(m.GPU_PCIE_RATE, (*labels, "tx"), profile.pcie_tx_bytes_per_s)
        page.add(m.GPU_PCIE_RATE, (*labels, "rx"), profile.pcie_rx_bytes_per_s)
    # The card's instances are the GPUs above, and only the card reports power.
    if gpu.mig is not None:
        page.add(m.GPU_POWER, labels, gpu.power_watts)
    for mig in gpu.mig or ():
        instances = (str(mig.gpu_instance), str(mig.compute_instance))
        page.add(m.GPU_MIG_INFO, (*labels, mig.uuid, mig.profile, *instances), 1)


def _grant(page: Page, grant: GrantView) -> None:
    own = (grant.grant, grant.name)
    page.add(m.GRANT_INFO, (*own, grant.policy.value, grant.state, str(grant.uid)), 1)
    page.add(m.GRANT_PROCESSES, own, grant.processes)
    page.add(m.GRANT_TAMPERS, own, grant.tamper_events_total)
    for device in grant.devices:
        labels = (*own, device.gpu)
        page.add(m.GRANT_MEMORY_LIMIT, labels, device.memory_limit_bytes)
        page.add(m.GRANT_MEMORY_USED, labels, device.memory_used_bytes)
        page.add(m.GRANT_MEMORY_PEAK, labels, device.memory_peak_bytes)
        page.add(m.GRANT_SM_LIMIT, labels, device.share_ratio)
        page.add(m.GRANT_SM_USED, labels, device.used_ratio)
        page.add(m.GRANT_BUSY, labels, device.busy_seconds_total)
        page.add(m.GRANT_THROTTLED, labels, device.throttled_seconds_total)
        page.add(m.GRANT_LAUNCHES, labels, device.launches_total)
        page.add(m.GRANT_ALLOCATIONS, labels, device.allocations_total)
        page.add(m.GRANT_DENIED, labels, device.denied_total)


def _flag(value: bool | None) -> int | None:
    return None if value is None else int(value)

"""A node as people see it, with every figure set."""

from __future__ import annotations

from nodeagent.ports import DeviceView, GpuView, GrantView, LoopView, NodeView
from nodeagent.units import GpuUuid, GrantId, SharePolicy

GPU = GpuUuid("GPU-adfc8afe-5fea-48d3-9e78-4acd2b02d679")
GIB = 2**30


def device() -> DeviceView:
    return DeviceView(
        gpu=GPU, gpu_index=0, memory_limit_bytes=8 * GIB, memory_used_bytes=3 * GIB, memory_peak_bytes=4 * GIB,
        share_ratio=0.3, used_ratio=0.285, busy_seconds_total=12.5, throttled_seconds_total=7.25, launches_total=1234,
        allocations_total=56, denied_total=1, turn="lease",
    )  # fmt: skip


def grant(name: str = "train") -> GrantView:
    return GrantView(
        grant=GrantId("6ba79945-498f-493f-adf5-81b8b2b87dfa"), name=name, uid=1000, pid=4242, command="python train.py",
        policy=SharePolicy.HARD, state="active", created_unix_s=1.7e9, processes=2, tamper_events_total=0,
        directory="/run/sluice/grants/6ba79945", devices=(device(),),
    )  # fmt: skip


def node(*grants: GrantView) -> NodeView:
    gpu = GpuView(
        uuid=GPU, index=0, name="NVIDIA H100 80GB HBM3", memory_total_bytes=80 * GIB, memory_used_bytes=5 * GIB,
        memory_granted_bytes=8 * GIB, share_granted_ratio=0.3, grants=1, slots=10, utilization_ratio=0.29,
        temperature_celsius=41.0, power_watts=230.5, sm_count=132, pci_bus_id="00000000:10:00.0", numa_node=0,
        health="healthy",
    )  # fmt: skip
    return NodeView(
        gpus=(gpu,), grants=grants or (grant(),), loops=(LoopView("planning", 1.7e9),), waiting=2, reading_age_s=0.5,
        driver_version="580.95.05", nvml_error=None, nvml_restarts_total=1, version="0.1.0",
        counters={"tampers": 3, "registrations_dropped": 4},
    )  # fmt: skip

"""A node as people see it, with every figure set: GPUs as captured from two busy (simulated) ones,
two containers on the first, a job of a user's and an inference server on the second."""

from __future__ import annotations

import json
from dataclasses import replace

from nodeagent.core.metrics import catalogue as m
from nodeagent.ports.gpus import GpuReading, NodeReading
from nodeagent.ports.ledger import ContainerRef
from nodeagent.ports.views import (
    DeviceView,
    GpuView,
    GrantView,
    HostFigures,
    LoopView,
    NodeView,
    OwnProcess,
    QueueView,
)
from nodeagent.units import GpuUuid, GrantId, SharePolicy
from sluicecommon.plain import read_plain
from tests.kit.places import REPO

CAPTURED: NodeReading = read_plain(
    NodeReading, json.loads((REPO / "tests" / "golden" / "node-two-gpus.json").read_text())
)
GPU = CAPTURED.gpus[0].uuid
GIB = 2**30


def device(gpu: GpuUuid = GPU, index: int = 0) -> DeviceView:
    return DeviceView(
        gpu=gpu, gpu_index=index, memory_limit_bytes=8 * GIB, memory_used_bytes=3 * GIB, memory_peak_bytes=4 * GIB,
        share_ratio=0.3, used_ratio=0.285, busy_seconds_total=12.5, throttled_seconds_total=7.25, launches_total=1234,
        allocations_total=56, denied_total=1, turn="lease",
    )  # fmt: skip


def grant(name: str = "train", grant: str = "6ba79945-498f-493f-adf5-81b8b2b87dfa") -> GrantView:
    return GrantView(
        grant=GrantId(grant), name=name, uid=1000, pid=4242, command="python train.py",
        policy=SharePolicy.HARD, state="active", created_unix_s=1.7e9, processes=2, tamper_events_total=0,
        directory="/run/sluice/grants/6ba79945", devices=(device(),), pids=(4200,),
    )  # fmt: skip


COUNTERS = {
    m.TAMPERS: 3,
    m.REGISTRATIONS_DROPPED: 4,
    m.SPILLED_BYTES: 3 << 30,
    m.SPILLS: {"spilled": 2, "failed": 1, "returned": 1, "stayed": 0, "lost": 0, "found": 0},
    m.CONFIG_VALID: 1,
    m.CONFIG_WAITING: 2,
    m.KUBELET_REGISTERED: 1,
    m.KUBELET_REGISTRATIONS: 2,
    m.KUBELET_READABLE: 1,
    m.KUBELET_ALLOCATIONS: 12,
    m.KUBELET_STARTS: 14,
    m.KUBELET_REFUSED: 3,
    m.KUBELET_RELEASES: 5,
    m.KUBELET_MISMATCHES: 1,
    m.KUBELET_UNREAD: 2,
    m.KUBERNETES_IN_SYNC: 1,
    m.KUBERNETES_COUNTED: 1,
    m.DRA_REGISTERED: 1,
    m.DRA_PUBLISHED: 1,
    m.DRA_SLICE_WRITES: 4,
    m.DRA_CLAIMS: 3,
    m.DRA_PREPARED: 12,
    m.DRA_REFUSED: 2,
    m.DRA_RELEASED: 9,
    m.DRA_READABLE: 1,
    m.EBPF_UP: 1,
    m.EBPF_RESTARTS: 2,
    m.EBPF_LOST: 5,
    m.EBPF_EVENTS: {
        "open": 21,
        "refused": 3,
        "exec": 8,
        "exit": 9,
        "foreign_library": 1,
        "altered_probe": 2,
    },
    m.AUDIT_WINDOWS: 60,
    m.AUDIT_LAUNCHES: {"driver": 40100, "interposer": 40000},
    m.EBPF_PROBE: {"driver": 0.0000025, "interposer": 0.00000035},
    m.PLUGIN_CONFLICT: 0,
    m.TOOLKIT_ACCEPTS: 1,
}


QUEUE = QueueView(
    connected=True, session_s=4321.5, silent_s=0.75, lease_left_s=14.25,
    works={"offered": 1, "running": 2, "paused": 1, "stopping": 0, "stopped": 0, "finished": 1, "refused": 0},
    waiting=3, term=7, revision=1234, sessions_total=2, fenced_total=1,
)  # fmt: skip


def contained(pod: str, container: str, number: int, pid: int, gpu: GpuReading) -> GrantView:
    ref = ContainerRef(
        pod_uid=f"1b4e28ba-2fa1-11d2-883f-00000000000{number}",
        container=container,
        device_ids=(f"{gpu.uuid}::{number}",),
        namespace="ml",
        pod=pod,
    )
    name = f"ml/{pod}/{container}"
    made = grant(name, f"7ba79945-498f-493f-adf5-81b8b2b8000{number}")
    return replace(made, container=ref, pids=(pid,), devices=(device(gpu.uuid, gpu.index),))


def gpu_view(gpu: GpuReading, grants: int) -> GpuView:
    return GpuView(
        **gpu.figures(),
        memory_granted_bytes=grants * 8 * GIB,
        share_granted_ratio=grants * 0.3,
        grants=grants,
        slots=10,
        health="healthy",
        context_switch_s=0.0002,
    )


def node(*grants: GrantView) -> NodeView:
    first, second = CAPTURED.gpus
    found = grants or (
        contained("bert-0", "trainer", 1, 4200, first),
        contained("bert-1", "trainer", 2, 4201, first),
        contained("llm-0", "server", 3, 4202, second),
    )
    on = {
        gpu.uuid: sum(d.gpu == gpu.uuid for g in found for d in g.devices)
        for gpu in (first, second)
    }
    return NodeView(
        gpus=tuple(gpu_view(gpu, on[gpu.uuid]) for gpu in CAPTURED.gpus), grants=found,
        loops=(LoopView("planning", 1.7e9),), waiting=2, reading_age_s=0.5,
        driver_version=CAPTURED.driver_version, nvml_error=None, nvml_restarts_total=1, version="0.1.0",
        counters=COUNTERS, readings=CAPTURED.gpus,
        xids={first.uuid: {31: 2, 79: 1}}, last_xid={first.uuid: 31}, nvml_version=CAPTURED.nvml_version,
        queue=QUEUE,
        host=HostFigures(1 << 40, 1 << 39, 64, 3.5, (OwnProcess("daemon", 60 << 20, 12.5),)),
        detections={"unregistered_gpu_user": 2}, suspicions={"unregistered_gpu_user": 1}, acts={"freeze": 1}, held={"freeze": 1},
    )  # fmt: skip

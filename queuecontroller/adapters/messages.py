"""Both directions between the wire's messages and our own values; every number is range-checked.

Raises Refused("invalid") for what cannot be meant.
"""

from __future__ import annotations

import math
from typing import Any, Final

from queuecontroller.engine.model import WorkloadKey
from queuecontroller.engine.selectors import Taint
from queuecontroller.placement.capacity import GpuCapacity, MigProfile, NodeCapacity
from queuecontroller.placement.mig import Span
from queuecontroller.records import (
    Assignment,
    Desired,
    GpuAsk,
    GpuShare,
    OnPreemption,
    PodState,
    SharePolicy,
)
from queuecontroller.service.node_desk import Said
from queuecontroller.service.nodes import Held, Hello
from queuecontroller.service.status import Status
from queuecontroller.service.submission import Refused, Submission

from .wire import Wire

WHOLE_PPM: Final = 1_000_000
MOST_BYTES: Final = 1 << 53
MOST_GPUS: Final = 16
LONGEST_TEXT: Final = 1024
LONGEST_RECORD: Final = 1 << 18
MOST_ITEMS: Final = 20_000
MOST_PROFILES: Final = 64
MOST_SLICES: Final = 64
"""Memory slices of a GPU; 8 on cards of today."""

_STATES: Final = {
    1: "offered",
    2: "running",
    3: "paused",
    4: "stopping",
    5: "stopped",
    6: "finished",
    7: "refused",
}
_DESIRED: Final = {Desired.RUN: 1, Desired.PAUSE: 2, Desired.STOP: 3}
_POLICIES: Final = {
    0: SharePolicy.HARD,
    1: SharePolicy.HARD,
    2: SharePolicy.ELASTIC,
    3: SharePolicy.EXCLUSIVE,
}
_POLICY_NUMBERS: Final = {SharePolicy.HARD: 1, SharePolicy.ELASTIC: 2, SharePolicy.EXCLUSIVE: 3}


def text(value: str, what: str, longest: int = LONGEST_TEXT) -> str:
    if len(value) > longest:
        raise Refused("invalid", f"{what}: longer than {longest} characters")
    return "".join(c if c.isprintable() else "?" for c in value)


def _within(value: int, low: int, high: int, what: str) -> int:
    if not low <= value <= high:
        raise Refused("invalid", f"{what}: {value} is not between {low} and {high}")
    return value


def _few(items: Any, what: str, most: int = MOST_ITEMS) -> Any:
    if len(items) > most:
        raise Refused("invalid", f"{what}: more than {most}")
    return items


# -- from nodes -----------------------------------------------------------------------------------


def read_hello(message: Any) -> Hello:
    return Hello(
        node=text(message.node, "node", 253),
        boot_id=text(message.boot_id, "boot_id", 64),
        version=text(message.version, "version", 64),
        cluster_id=text(message.cluster_id, "cluster_id", 64),
        seen_term=message.seen_term,
        seen_revision=_within(message.seen_revision, 0, 1 << 60, "seen_revision"),
        epoch=_within(message.epoch, 0, 1 << 60, "epoch"),
        held=tuple(_read_held(one) for one in _few(message.held, "held")),
        waiting=frozenset(WorkloadKey(one) for one in _few(message.waiting, "waiting")),
        capacity=read_capacity(message.capacity),
    )


def _read_held(message: Any) -> Held:
    decision = message.decision
    return Held(
        workload=WorkloadKey(text(decision.workload, "workload")),
        pod=text(decision.pod, "pod"),
        uid=text(decision.uid, "uid", 64),
        attempt=decision.attempt,
        state=_STATES.get(message.state, "unknown"),
        reason=text(message.reason[:LONGEST_TEXT], "reason"),
        exit_status=message.exit_status,
        gpus=read_shares(decision.gpus),
        record=decision.record[:LONGEST_RECORD],
        started=message.started,
    )


def read_capacity(message: Any) -> NodeCapacity:
    return NodeCapacity(
        gpus=tuple(_read_gpu(one) for one in _few(message.gpus, "gpus", 1024)),
        labels=dict(_few(message.labels, "labels", 512)),
        taints=tuple(
            Taint(one.key, one.value, one.effect or "NoSchedule")
            for one in _few(message.taints, "taints", 512)
        ),
        unschedulable=message.unschedulable,
        other=dict(_few(message.other_resources, "other_resources", 512)),
    )


def _read_gpu(message: Any) -> GpuCapacity:
    def maybe(name: str) -> Any:
        return getattr(message, name) if message.HasField(name) else None

    return GpuCapacity(
        uuid=text(message.uuid, "uuid", 128),
        index=message.index,
        type=text(message.type, "type", 128),
        memory_bytes=_within(message.memory_bytes, 0, MOST_BYTES, "memory_bytes"),
        share_ppm=_within(message.share_ppm, 0, WHOLE_PPM, "share_ppm"),
        slots=_within(message.slots, 0, 1024, "slots"),
        numa_node=maybe("numa_node"),
        nvlinks={one.peer_uuid: one.links for one in message.nvlinks},
        mig_enabled=message.mig_enabled,
        mig_profiles=tuple(
            MigProfile(
                text(one.name, "mig_profiles.name", 64),
                one.total,
                one.free,
                _within(one.memory_bytes, 0, MOST_BYTES, "mig_profiles.memory_bytes"),
                _read_spans(one.placements, "mig_profiles.placements"),
            )
            for one in _few(message.mig_profiles, "mig_profiles", MOST_PROFILES)
        ),
        health=text(message.health, "health", 64) or "healthy",
        pci_bus_id=maybe("pci_bus_id"),
        sm_count=maybe("sm_count"),
        outside_memory_bytes=min(message.outside_memory_bytes, MOST_BYTES),
        outside_share_ppm=min(message.outside_share_ppm, WHOLE_PPM),
        outside_slots=message.outside_slots,
        outside_spans=_read_spans(message.outside_mig_spans, "outside_mig_spans"),
        used_memory_bytes=maybe("used_memory_bytes"),
        utilization_ratio=maybe("utilization_ratio"),
        parent_uuid=text(message.parent_uuid, "parent_uuid", 128),
        mig_profile=text(message.mig_profile, "mig_profile", 64),
        mig_span=(
            _read_spans([message.mig_span], "mig_span")[0] if message.HasField("mig_span") else None
        ),
    )


def _read_spans(messages: Any, what: str) -> tuple[Span, ...]:
    return tuple(
        Span(
            _within(one.start, 0, MOST_SLICES - 1, f"{what}.start"),
            _within(one.size, 1, MOST_SLICES, f"{what}.size"),
        )
        for one in _few(messages, what, MOST_SLICES)
    )


def read_shares(messages: Any) -> tuple[GpuShare, ...]:
    return tuple(
        GpuShare(
            text(one.uuid, "uuid", 128),
            _within(one.memory_bytes, 0, MOST_BYTES, "memory_bytes"),
            _within(one.share_ppm, 0, WHOLE_PPM, "share_ppm"),
            text(one.mig_profile, "mig_profile", 64),
            _within(one.mig_span.start, 0, MOST_SLICES - 1, "mig_span.start"),
            _within(one.mig_span.size, 0, MOST_SLICES, "mig_span.size"),
        )
        for one in _few(messages, "gpus", 1024)
    )


def read_said(message: Any) -> Said:
    return Said(
        node=message.node,
        epoch=message.epoch,
        workload=WorkloadKey(message.workload),
        pod=message.pod,
        uid=message.uid,
        attempt=message.attempt,
        reason=text(message.reason[:LONGEST_TEXT], "reason"),
        started=getattr(message, "started", True),  # a confirmation has no such field
    )


def read_state(message: Any) -> PodState | None:
    """RUNNING or PAUSED; None for REFUSED. Raises Refused for any other."""
    state = _STATES.get(message.state, "unknown")
    if state == "refused":
        return None
    if state not in ("running", "paused"):
        raise Refused("invalid", f"state: {state} is no confirmation")
    return PodState(state)


# -- to nodes -------------------------------------------------------------------------------------


def write_decision(
    wire: Wire, one: Assignment, record: str, grace_s: float, pause_when_lost: bool
) -> Any:
    return wire.Decision(
        revision=one.revision,
        workload=one.workload,
        pod=one.pod,
        uid=one.uid,
        attempt=one.attempt,
        desired=_DESIRED[one.desired],
        ask=write_ask(wire, one.ask),
        gpus=[_write_share(wire, s) for s in one.gpus],
        cluster_queue=one.cluster_queue,
        priority=one.priority,
        reason=one.reason,
        grace_seconds=grace_s,
        record=record,
        pause_when_lost=pause_when_lost,
    )


def _write_share(wire: Wire, one: GpuShare) -> Any:
    message = wire.GpuShare(uuid=one.uuid, memory_bytes=one.memory_bytes, share_ppm=one.share_ppm)
    if one.mig:
        message.mig_profile = one.mig
        message.mig_span.start, message.mig_span.size = one.mig_start, one.mig_size
    return message


def write_ask(wire: Wire, ask: GpuAsk) -> Any:
    message = wire.GpuAsk(
        gpus=ask.gpus,
        share_ppm=ask.share_ppm,
        policy=_POLICY_NUMBERS[ask.policy],
        gpu_uuids=list(ask.gpu_uuids),
        mig_profiles=list(ask.mig),
    )
    if ask.memory_bytes is not None:
        message.memory_bytes = ask.memory_bytes
    else:
        message.memory_ppm = WHOLE_PPM if ask.memory_ppm is None else ask.memory_ppm
    return message


# -- users ----------------------------------------------------------------------------------------


def read_ask(message: Any) -> GpuAsk:
    form = message.WhichOneof("memory")
    count = _within(message.gpus or 1, 1, MOST_GPUS, "ask.gpus")
    _few(message.gpu_uuids, "ask.gpu_uuids", MOST_GPUS)
    if message.policy not in _POLICIES:
        raise Refused("invalid", f"ask.policy: {message.policy} is not known here")
    mig = tuple(
        text(one, "ask.mig_profiles", 64)
        for one in _few(message.mig_profiles, "ask.mig_profiles", MOST_GPUS)
    )
    if mig and (message.gpu_uuids or _POLICIES[message.policy] is SharePolicy.EXCLUSIVE):
        raise Refused("invalid", "ask.mig_profiles: with neither gpu_uuids nor exclusive")
    return GpuAsk(
        gpus=count,
        memory_bytes=(
            _within(message.memory_bytes, 1, MOST_BYTES, "ask.memory_bytes")
            if form == "memory_bytes"
            else None
        ),
        memory_ppm=(
            _within(message.memory_ppm, 1, WHOLE_PPM, "ask.memory_ppm")
            if form == "memory_ppm"
            else None
        ),
        share_ppm=_within(message.share_ppm or WHOLE_PPM, 1, WHOLE_PPM, "ask.share_ppm"),
        policy=_POLICIES[message.policy],
        gpu_uuids=tuple(text(one, "ask.gpu_uuids", 128) for one in message.gpu_uuids),
        mig=mig,
    )


def read_submission(message: Any) -> Submission:
    if message.preempted and message.preempted not in set(OnPreemption):
        raise Refused("invalid", f"preempted: {message.preempted!r} is neither stop nor pause")
    seconds = message.max_execution_seconds
    if not math.isfinite(seconds) or seconds < 0:
        raise Refused("invalid", "max_execution_seconds: must be 0 or more")
    return Submission(
        namespace=text(message.namespace, "namespace", 63) or "default",
        name=text(message.name, "name", 253),
        queue=text(message.queue, "queue", 253),
        ask=read_ask(message.ask),
        priority_class=text(message.priority_class, "priority_class", 253),
        node=text(message.node, "node", 253),
        user=text(message.user, "user", 253),
        command=text(message.command, "command"),
        on_preemption=OnPreemption(message.preempted) if message.preempted else None,
        max_execution_s=math.ceil(seconds) or None,
        token=text(message.token, "token", 128),
    )


def write_status(wire: Wire, status: Status) -> Any:
    message = wire.WorkloadStatus(
        workload=status.workload,
        uid=status.uid,
        phase=status.phase,
        cluster_queue=status.cluster_queue,
        position=status.position,
        waiting=status.waiting,
        reason=status.reason,
        message=status.message,
        node=status.node,
        attempt=status.attempt,
        revision=status.revision,
    )
    if status.estimate_s is not None:
        message.estimate_seconds = status.estimate_s
    return message

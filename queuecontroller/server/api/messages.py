"""Converts between protobuf messages and the state's values; every number is range-checked.

Readers raise Refused("invalid") for values out of range.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, Final

from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.scheduler.model.selectors import Taint
from queuecontroller.scheduler.placement.capacity import (
    Checkpoint,
    CheckpointState,
    GpuCapacity,
    MigProfile,
    NodeCapacity,
    PodGpus,
    PodShare,
)
from queuecontroller.scheduler.placement.mig import Span
from queuecontroller.server.api.wire import Wire
from queuecontroller.state.node_service import WorkReport
from queuecontroller.state.nodes.sessions import MAX_DETECTIONS, Detection, Held, Hello
from queuecontroller.state.objects.submission import Refused, Submission
from queuecontroller.state.records import (
    Assignment,
    Desired,
    GpuAsk,
    GpuShare,
    OnPreemption,
    PodState,
    SharePolicy,
)
from queuecontroller.state.status import Status
from sluicecommon.kubernetes.names import LONGEST, NODE, shown

WHOLE_PPM: Final = 1_000_000
MAX_BYTES: Final = 1 << 53
MAX_GPUS: Final = 16
LONGEST_TEXT: Final = 1024
LONGEST_RECORD: Final = 1 << 18
MAX_ITEMS: Final = 20_000
MAX_PROFILES: Final = 64
MAX_PODS: Final = 4096
"""Pods of one node; the kubelet's default limit is 110."""
MAX_LABELS: Final = 256
LONGEST_KEY: Final = 4096
MAX_NUMBER: Final = 1 << 60
"""Limit of terms, revisions and epochs, which fits into SQLite, JSON and int64."""
MAX_RATIO: Final = 1000.0
"""GPU time over wall time may be above 1 where several GPUs count together."""
MAX_INDEX: Final = 1 << 20
MAX_SECONDS: Final = 1 << 31
MAX_UNIX_S: Final = 1 << 40
LONGEST_EVIDENCE: Final = 2_000
MAX_PRIORITY: Final = (1 << 31) - 1
MAX_SLICES: Final = 64
"""Memory slices of a GPU; current cards have 8."""

_STATES: Final = {
    1: "offered",
    2: "running",
    3: "paused",
    4: "stopping",
    5: "stopped",
    6: "finished",
    7: "refused",
}
_DESIRED: Final = {Desired.RUN: 1, Desired.PAUSE: 2, Desired.STOP: 3, Desired.CHECKPOINT: 4}
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
    return value if value.isprintable() else "".join(c if c.isprintable() else "?" for c in value)


def _within(value: int, low: int, high: int, what: str) -> int:
    if not low <= value <= high:
        raise Refused("invalid", f"{what}: {value} is not between {low} and {high}")
    return value


def node_name(value: str) -> str:
    if not NODE.fullmatch(value):
        form = "letters, digits, '-', '.' and '_', at most 253"
        raise Refused("invalid", f"node: {shown(value)}: {form}" if value else "node: is missing")
    return value


def read_key(value: str, what: str = "workload") -> WorkloadKey:
    """A key `namespace/name` for look-up. Its form is not checked, since an earlier version
    accepted any name."""
    if len(value) > LONGEST_KEY:
        raise Refused("invalid", f"{what}: longer than {LONGEST_KEY} characters")
    return WorkloadKey(value)


def few(items: Any, what: str, most: int = MAX_ITEMS) -> Any:
    if len(items) > most:
        raise Refused("invalid", f"{what}: more than {most}")
    return items


# -- from nodes -----------------------------------------------------------------------------------


def read_hello(message: Any) -> Hello:
    return Hello(
        node=node_name(message.node),
        boot_id=text(message.boot_id, "boot_id", 64),
        version=text(message.version, "version", 64),
        cluster_id=text(message.cluster_id, "cluster_id", 64),
        seen_term=_within(message.seen_term, 0, MAX_NUMBER, "seen_term"),
        seen_revision=_within(message.seen_revision, 0, MAX_NUMBER, "seen_revision"),
        epoch=_within(message.epoch, 0, MAX_NUMBER, "epoch"),
        held=tuple(_read_held(one) for one in few(message.held, "held")),
        waiting=frozenset(read_key(one, "waiting") for one in few(message.waiting, "waiting")),
        capacity=read_capacity(message.capacity),
        proof=message.proof[:LONGEST_TEXT],
    )


def _read_held(message: Any) -> Held:
    decision = message.decision
    return Held(
        workload=read_key(decision.workload),
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
    gpus = tuple(_read_gpu(one) for one in few(message.gpus, "gpus", 1024))
    twice = [uuid for uuid, count in Counter(gpu.uuid for gpu in gpus).items() if count > 1]
    if twice:
        raise Refused("invalid", f"gpus: {shown(min(twice))} is listed twice")
    return NodeCapacity(
        gpus=gpus,
        labels={
            _word(key, "labels"): _word(value, "labels", True)
            for key, value in few(message.labels, "labels", MAX_LABELS).items()
        },
        taints=tuple(
            Taint(
                _word(one.key, "taints.key"),
                _word(one.value, "taints.value", True),
                _word(one.effect or "NoSchedule", "taints.effect"),
            )
            for one in few(message.taints, "taints", MAX_LABELS)
        ),
        unschedulable=message.unschedulable,
        other={
            _word(name, "other_resources"): _within(amount, 0, MAX_NUMBER, "other_resources")
            for name, amount in few(message.other_resources, "other_resources", MAX_LABELS).items()
        },
        pods=tuple(_read_pod(one) for one in few(message.pods, "pods", MAX_PODS)),
    )


def _read_pod(message: Any) -> PodGpus:
    return PodGpus(
        _word(message.uid, "pods.uid"),
        _word(message.namespace, "pods.namespace", True),
        _word(message.pod, "pods.pod", True),
        tuple(
            PodShare(
                _word(one.uuid, "pods.shares.uuid"),
                _within(one.memory_bytes, 0, MAX_BYTES, "pods.shares.memory_bytes"),
                _within(one.share_ppm, 0, WHOLE_PPM, "pods.shares.share_ppm"),
                one.alone,
            )
            for one in few(message.shares, "pods.shares", 1024)
        ),
        _read_checkpoint(message.checkpoint) if message.HasField("checkpoint") else None,
    )


def _read_checkpoint(message: Any) -> Checkpoint:
    """A state that this version does not know is on its way to one that it knows."""
    known = message.state in set(CheckpointState)
    return Checkpoint(
        _word(message.told, "pods.checkpoint.told", True),
        CheckpointState(message.state) if known else CheckpointState.MOVING,
        "".join(one if one.isprintable() else " " for one in message.why[:LONGEST]),
    )


def _word(value: str, what: str, may_be_empty: bool = False) -> str:
    if len(value) > LONGEST or not value.isprintable() or not (value or may_be_empty):
        raise Refused("invalid", f"{what}: {shown(value)} is empty, too long or not printable")
    return value


def _unix_s(value: float, what: str) -> int:
    if not 0.0 <= value <= MAX_UNIX_S:  # NaN is in no range
        raise Refused("invalid", f"{what}: expected a time, got {value}")
    return int(value)


def _ratio(value: float | None, what: str) -> float | None:
    if value is not None and not 0.0 <= value <= MAX_RATIO:  # NaN is in no range
        raise Refused("invalid", f"{what}: expected a ratio, got {value}")
    return value


def _read_gpu(message: Any) -> GpuCapacity:
    def maybe(name: str) -> Any:
        return getattr(message, name) if message.HasField(name) else None

    return GpuCapacity(
        uuid=_word(message.uuid, "uuid"),
        index=_within(message.index, 0, MAX_INDEX, "index"),
        type=text(message.type, "type", 128),
        memory_bytes=_within(message.memory_bytes, 0, MAX_BYTES, "memory_bytes"),
        share_ppm=_within(message.share_ppm, 0, WHOLE_PPM, "share_ppm"),
        slots=_within(message.slots, 0, 1024, "slots"),
        numa_node=_maybe_within(maybe("numa_node"), -1, MAX_INDEX, "numa_node"),
        nvlinks={
            _word(one.peer_uuid, "nvlinks"): _within(one.links, 0, 1024, "nvlinks.links")
            for one in few(message.nvlinks, "nvlinks", 1024)
        },
        mig_enabled=message.mig_enabled,
        mig_profiles=tuple(
            MigProfile(
                text(one.name, "mig_profiles.name", 64),
                _within(one.total, 0, 1024, "mig_profiles.total"),
                _within(one.free, 0, 1024, "mig_profiles.free"),
                _within(one.memory_bytes, 0, MAX_BYTES, "mig_profiles.memory_bytes"),
                _read_spans(one.placements, "mig_profiles.placements"),
            )
            for one in few(message.mig_profiles, "mig_profiles", MAX_PROFILES)
        ),
        health=text(message.health, "health", 64) or "healthy",
        pci_bus_id=text(message.pci_bus_id, "pci_bus_id", 64) if maybe("pci_bus_id") else None,
        sm_count=_maybe_within(maybe("sm_count"), 0, MAX_INDEX, "sm_count"),
        outside_memory_bytes=min(message.outside_memory_bytes, MAX_BYTES),
        outside_share_ppm=min(message.outside_share_ppm, WHOLE_PPM),
        outside_slots=_within(message.outside_slots, 0, MAX_INDEX, "outside_slots"),
        outside_spans=_read_spans(message.outside_mig_spans, "outside_mig_spans"),
        used_memory_bytes=_maybe_within(
            maybe("used_memory_bytes"), 0, MAX_BYTES, "used_memory_bytes"
        ),
        utilization_ratio=_ratio(maybe("utilization_ratio"), "utilization_ratio"),
        parent_uuid=text(message.parent_uuid, "parent_uuid", 128),
        mig_profile=text(message.mig_profile, "mig_profile", 64),
        mig_span=(
            _read_spans([message.mig_span], "mig_span")[0] if message.HasField("mig_span") else None
        ),
        health_reason=text(message.health_reason, "health_reason", 256),
    )


def _maybe_within(value: int | None, low: int, high: int, what: str) -> int | None:
    return None if value is None else _within(value, low, high, what)


def read_detections(messages: Any) -> list[Detection]:
    """The detections of one report; the caller checks that their workloads belong to the node."""
    return [
        Detection(
            _within(one.number, 0, MAX_NUMBER, "detections.number"),
            _unix_s(one.at_unix_seconds, "detections.at_unix_seconds"),
            text(one.kind, "detections.kind", 64),
            text(one.level, "detections.level", 16),
            text(one.text, "detections.text"),
            read_key(one.workload, "detections.workload") if one.workload else None,
            text(one.evidence, "detections.evidence", LONGEST_EVIDENCE),
        )
        for one in few(messages, "detections", MAX_DETECTIONS)
    ]


def read_usage(messages: Any) -> dict[tuple[WorkloadKey, int], tuple[int, float | None]]:
    """Measured memory and GPU time ratio, by workload and attempt."""
    return {
        (read_key(one.workload, "usage"), one.attempt): (
            _within(one.memory_bytes, 0, MAX_BYTES, "usage.memory_bytes"),
            _ratio(one.used_ratio if one.HasField("used_ratio") else None, "usage.used_ratio"),
        )
        for one in few(messages, "usage", 10_000)
    }


def read_pod_usage(messages: Any) -> dict[str, tuple[int, float | None]]:
    """Measured memory and GPU time ratio, by the pod's UID."""
    return {
        _word(one.uid, "pod_usage.uid"): (
            _within(one.memory_bytes, 0, MAX_BYTES, "pod_usage.memory_bytes"),
            _ratio(one.used_ratio if one.HasField("used_ratio") else None, "pod_usage.used_ratio"),
        )
        for one in few(messages, "pod_usage", MAX_PODS)
    }


def _read_spans(messages: Any, what: str) -> tuple[Span, ...]:
    return tuple(
        Span(
            _within(one.start, 0, MAX_SLICES - 1, f"{what}.start"),
            _within(one.size, 1, MAX_SLICES, f"{what}.size"),
        )
        for one in few(messages, what, MAX_SLICES)
    )


def read_shares(messages: Any) -> tuple[GpuShare, ...]:
    return tuple(
        GpuShare(
            text(one.uuid, "uuid", 128),
            _within(one.memory_bytes, 0, MAX_BYTES, "memory_bytes"),
            _within(one.share_ppm, 0, WHOLE_PPM, "share_ppm"),
            text(one.mig_profile, "mig_profile", 64),
            _within(one.mig_span.start, 0, MAX_SLICES - 1, "mig_span.start"),
            _within(one.mig_span.size, 0, MAX_SLICES, "mig_span.size"),
        )
        for one in few(messages, "gpus", 1024)
    )


def read_work_report(message: Any, sender: Any) -> WorkReport:
    """`sender` names the node and its session."""
    return WorkReport(
        node=node_name(sender.node),
        epoch=sender.epoch,
        workload=read_key(message.workload),
        pod=text(message.pod, "pod"),
        uid=text(message.uid, "uid", 64),
        attempt=message.attempt,
        reason=text(message.reason[:LONGEST_TEXT], "reason"),
        started=getattr(message, "started", True),  # A confirmation has no such field.
    )


def read_state(message: Any) -> PodState | None:
    """RUNNING or PAUSED; None for REFUSED. Raises Refused for any other state."""
    state = _STATES.get(message.state, "unknown")
    if state == "refused":
        return None
    if state not in ("running", "paused"):
        raise Refused("invalid", f"state: {state} cannot be confirmed")
    return PodState(state)


# -- to nodes -------------------------------------------------------------------------------------


def write_decision(
    wire: Wire,
    one: Assignment,
    record: str,
    grace_s: float,
    pause_when_lost: bool,
    nodes: int,
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
        priority=max(-MAX_PRIORITY, min(MAX_PRIORITY, one.priority)),
        reason=one.reason,
        grace_seconds=grace_s,
        record=record,
        pause_when_lost=pause_when_lost,
        nodes=nodes,
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
    count = _within(message.gpus or 1, 1, MAX_GPUS, "ask.gpus")
    few(message.gpu_uuids, "ask.gpu_uuids", MAX_GPUS)
    if message.policy not in _POLICIES:
        raise Refused("invalid", f"ask.policy: unknown policy {message.policy}")
    mig = tuple(
        text(one, "ask.mig_profiles", 64)
        for one in few(message.mig_profiles, "ask.mig_profiles", MAX_GPUS)
    )
    if mig and (message.gpu_uuids or _POLICIES[message.policy] is SharePolicy.EXCLUSIVE):
        raise Refused(
            "invalid", "ask.mig_profiles: cannot be combined with gpu_uuids or policy exclusive"
        )
    return GpuAsk(
        gpus=count,
        memory_bytes=(
            _within(message.memory_bytes, 1, MAX_BYTES, "ask.memory_bytes")
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


def read_submission(message: Any, caller: str) -> Submission:
    """The submission in a message; `caller` is its user if the message names none."""
    if message.preempted and message.preempted not in set(OnPreemption):
        known = ", ".join(OnPreemption)
        raise Refused("invalid", f"preempted: must be one of {known}, got {message.preempted!r}")
    seconds = message.max_execution_seconds
    if not 0 <= seconds <= MAX_SECONDS:  # NaN is in no range
        raise Refused("invalid", f"max_execution_seconds: must be from 0 to {MAX_SECONDS}")
    return Submission(
        namespace=message.namespace[: LONGEST + 1] or "default",  # Its form is checked later.
        name=message.name[: LONGEST + 1],
        queue=message.queue[: LONGEST + 1],
        ask=read_ask(message.ask),
        priority_class=text(message.priority_class, "priority_class", 253),
        node=node_name(message.node) if message.node else "",
        user=text(message.user, "user", 253) or caller,
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

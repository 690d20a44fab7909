"""Conversion between the messages of queue.proto and the node's own values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from nodeagent.adapters.api.wire import Wire
from nodeagent.ports.queue import (
    Capacity,
    Decision,
    Desired,
    Detection,
    GivenShare,
    PodCheckpoint,
    PodUsage,
    QueueStatus,
    ReportedGpu,
    Submission,
    Usage,
    Welcome,
    Work,
    WorkState,
)
from nodeagent.units import WHOLE_PPM, Bytes, GpuUuid, Ppm, SharePolicy

_DESIRED: Final = {
    1: Desired.RUN,
    2: Desired.PAUSE,
    3: Desired.STOP,
    4: Desired.CHECKPOINT,
}
_DESIRED_NUMBERS: Final = {desired: number for number, desired in _DESIRED.items()}
_STATES: Final = {
    WorkState.OFFERED: 1,
    WorkState.RUNNING: 2,
    WorkState.PAUSED: 3,
    WorkState.SPILLED: 3,
    WorkState.STOPPING: 4,
    WorkState.SPILLING: 4,  # It still holds everything, and is about to be preempted.
    WorkState.RETURNING: 4,
    WorkState.STOPPED: 5,
    WorkState.FINISHED: 6,
    WorkState.REFUSED: 7,
}
_POLICIES: Final = {1: SharePolicy.HARD, 2: SharePolicy.ELASTIC, 3: SharePolicy.EXCLUSIVE}
LONGEST_REASON: Final = 1000
LONGEST_HEALTH_REASON: Final = 200


def read_welcome(message: Any) -> Welcome:
    return Welcome(
        cluster_id=message.cluster_id,
        term=message.term,
        epoch=message.epoch,
        revision=message.revision,
        lease_s=message.lease_seconds,
        report_s=message.report_seconds,
        decisions=tuple(read_decision(one) for one in message.decisions),
        proof=message.proof,
    )


def read_decision(message: Any) -> Decision:
    """A decision. An unknown one of a later controller is read as stop, which is safest."""
    return Decision(
        workload=message.workload,
        pod=message.pod,
        uid=message.uid,
        attempt=message.attempt,
        revision=message.revision,
        desired=_DESIRED.get(message.desired, Desired.STOP),
        policy=_POLICIES.get(message.ask.policy, SharePolicy.HARD),
        gpus=tuple(
            GivenShare(
                GpuUuid(one.uuid),
                Bytes(one.memory_bytes),
                Ppm(one.share_ppm),
                one.mig_profile,
                one.mig_span.start,
                one.mig_span.size,
            )
            for one in message.gpus
        ),
        cluster_queue=message.cluster_queue,
        priority=message.priority,
        reason=message.reason,
        grace_s=max(0.0, message.grace_seconds),
        record=message.record,
        pause_when_lost=message.pause_when_lost,
        nodes=message.nodes,
    )


def write_held(wire: Wire, work: Work) -> Any:
    decision = work.decision
    return wire.message("HeldWork")(
        decision=wire.message("Decision")(
            workload=decision.workload,
            pod=decision.pod,
            uid=decision.uid,
            attempt=decision.attempt,
            revision=decision.revision,
            desired=_DESIRED_NUMBERS[decision.desired],
            gpus=[_share(wire, one) for one in decision.gpus],
            record=decision.record,
        ),
        state=_STATES[work.state],
        grant=work.grant or "",
        reason=work.reason[:LONGEST_REASON],
        started=work.started,
    )


def write_outcome(wire: Wire, about: Mapping[str, Any], work: Work) -> Any:
    return wire.message("Confirmation")(
        **about,
        state=_STATES[work.state],
        gpus=[_share(wire, one) for one in work.decision.gpus],
        grant=work.grant or "",
        refused=work.state in (WorkState.PAUSED, WorkState.SPILLED)
        and work.decision.desired is Desired.RUN,
    )


def _share(wire: Wire, one: GivenShare) -> Any:
    message = wire.message("GpuShare")(
        uuid=one.gpu, memory_bytes=one.memory_bytes, share_ppm=one.share_ppm
    )
    if one.mig_profile:
        message.mig_profile = one.mig_profile
        message.mig_span.start, message.mig_span.size = one.mig_start, one.mig_size
    return message


def write_capacity(wire: Wire, capacity: Capacity) -> Any:
    return wire.message("NodeCapacity")(
        gpus=[_gpu(wire, gpu) for gpu in capacity.gpus],
        labels=dict(capacity.labels),
        taints=[
            wire.message("NodeTaint")(key=key, value=value, effect=effect)
            for key, value, effect in capacity.taints
        ],
        unschedulable=capacity.unschedulable,
        pods=[
            wire.message("PodGpus")(
                uid=one.uid,
                namespace=one.namespace,
                pod=one.pod,
                shares=[
                    wire.message("PodShare")(
                        uuid=gpu, memory_bytes=memory, share_ppm=share, alone=alone
                    )
                    for gpu, memory, share, alone in one.shares
                ],
                checkpoint=_checkpoint(wire, one.checkpoint),
            )
            for one in capacity.pods
        ],
    )


def _checkpoint(wire: Wire, one: PodCheckpoint | None) -> Any:
    if one is None:
        return None
    return wire.message("PodCheckpoint")(told=one.told, state=one.state, why=one.why)


def _gpu(wire: Wire, gpu: ReportedGpu) -> Any:
    message = wire.message("NodeGpu")(
        uuid=gpu.uuid,
        index=gpu.index,
        type=gpu.type,
        memory_bytes=gpu.memory_bytes,
        share_ppm=gpu.share_ppm,
        slots=gpu.slots,
        nvlinks=[
            wire.message("NodeLink")(peer_uuid=peer, links=links)
            for peer, links in gpu.nvlinks.items()
        ],
        health=gpu.health,
        health_reason=gpu.health_reason[:LONGEST_HEALTH_REASON],
        outside_memory_bytes=gpu.outside_memory_bytes,
        outside_share_ppm=gpu.outside_share_ppm,
        outside_slots=gpu.outside_slots,
    )
    for name, value in (
        ("numa_node", gpu.numa_node),
        ("pci_bus_id", gpu.pci_bus_id),
        ("sm_count", gpu.sm_count),
        ("used_memory_bytes", gpu.used_memory_bytes),
        ("utilization_ratio", gpu.utilization_ratio),
    ):
        if value is not None:
            setattr(message, name, value)
    if gpu.mig_profile:
        _write_instance(wire, message, gpu)
    return message


def _write_instance(wire: Wire, message: Any, gpu: ReportedGpu) -> None:
    """A MIG instance; for placement it is a GPU in MIG mode with one profile and one place."""
    place = wire.message("MigSpan")(start=gpu.mig_start, size=gpu.mig_size)
    message.parent_uuid, message.mig_profile = gpu.parent or "", gpu.mig_profile
    message.mig_span.CopyFrom(place)
    message.mig_enabled = True
    taken = bool(gpu.outside_slots or gpu.outside_memory_bytes)
    message.mig_profiles.add(
        name=gpu.mig_profile,
        total=1,
        free=0 if taken else 1,
        memory_bytes=gpu.memory_bytes,
        placements=[place],
    )
    if taken:
        message.outside_mig_spans.add().CopyFrom(place)


def write_usage(wire: Wire, one: Usage) -> Any:
    message = wire.message("WorkUsage")(
        workload=one.workload, attempt=one.attempt, memory_bytes=one.memory_bytes
    )
    if one.used_ratio is not None:
        message.used_ratio = one.used_ratio
    return message


def write_pod_usage(wire: Wire, one: PodUsage) -> Any:
    message = wire.message("PodUsage")(uid=one.uid, memory_bytes=one.memory_bytes)
    if one.used_ratio is not None:
        message.used_ratio = one.used_ratio
    return message


def write_detection(wire: Wire, one: Detection) -> Any:
    return wire.message("NodeDetection")(
        number=one.number,
        at_unix_seconds=one.at_unix_s,
        kind=one.kind,
        level=one.level,
        text=one.text,
        workload=one.workload,
        evidence=one.evidence,
    )


def write_submission(wire: Wire, one: Submission, node: str) -> Any:
    ask = one.ask
    gpu_ask = wire.message("GpuAsk")(
        gpus=ask.gpus,
        share_ppm=WHOLE_PPM if ask.policy is SharePolicy.EXCLUSIVE else ask.share_ppm,
        policy=next(number for number, one in _POLICIES.items() if one is ask.policy),
        gpu_uuids=list(ask.gpu_uuids),
    )
    if ask.memory.amount_bytes is not None:
        gpu_ask.memory_bytes = ask.memory.amount_bytes
    else:
        gpu_ask.memory_ppm = WHOLE_PPM if ask.memory.part_ppm is None else ask.memory.part_ppm
    return wire.message("SubmitRequest")(
        namespace=one.namespace,
        name=one.name,
        queue=one.queue,
        priority_class=one.priority_class,
        ask=gpu_ask,
        node=node,
        user=one.user,
        command=ask.command,
        preempted=one.preempted,
        max_execution_seconds=one.max_execution_s,
        token=one.token,
    )


def read_status(message: Any) -> QueueStatus:
    return QueueStatus(
        workload=message.workload,
        uid=message.uid,
        phase=message.phase,
        position=message.position,
        waiting=message.waiting,
        reason=message.reason,
        message=message.message,
        estimate_s=(message.estimate_seconds if message.HasField("estimate_seconds") else None),
    )

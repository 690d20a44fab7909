"""Conversion between the messages of proto/sluice/v1/node.proto and our own values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from nodeagent.adapters.host.descriptors import Descriptors
from nodeagent.ports.clients import (
    GrantAsk,
    MemoryAsk,
    QueueAsk,
    RefusalKind,
    Refused,
    ResizeAsk,
    Waiting,
)
from nodeagent.ports.views import (
    ContainedView,
    DeviceView,
    GpuView,
    GrantView,
    NodeEvent,
    NodeView,
    ProcessView,
    TracedDevice,
    TraceView,
)
from nodeagent.units import (
    MAX_PRIORITY,
    Bytes,
    GpuUuid,
    GrantId,
    Nanoseconds,
    Ppm,
    SharePolicy,
)

SERVICE: Final = "sluice.v1.Node"
_POLICIES: Final = {1: SharePolicy.HARD, 2: SharePolicy.ELASTIC, 3: SharePolicy.EXCLUSIVE}
_POLICY_NUMBERS: Final = {policy: number for number, policy in _POLICIES.items()}


class Wire(Descriptors):
    """The message classes, and the conversion between them and our own values."""

    def message(self, name: str) -> Any:
        """The class of `sluice.v1.<name>`."""
        return self.message_class(f"sluice.v1.{name}")

    def methods(self, service_name: str = SERVICE) -> dict[str, tuple[Any, Any, bool]]:
        """Request class, response class and whether the response is a stream, by method of the
        service."""
        return self.service_methods(service_name)

    # --- from clients ---

    def read_grant_ask(self, request: Any) -> GrantAsk:
        """The request for a grant. Raises Refused if it is invalid."""
        return GrantAsk(
            gpus=request.gpus,
            memory=_read_memory(request.memory),
            share_ppm=Ppm(request.share_ppm),
            policy=_read_policy(request.policy) or SharePolicy.HARD,
            name=request.name,
            gpu_uuids=tuple(GpuUuid(uuid) for uuid in request.gpu_uuids),
            wait_s=request.wait_seconds,
            queue=_read_queue(request.queue) if request.HasField("queue") else None,
            driver_path=request.driver_path,
            nvml_path=request.nvml_path,
            command=request.command,
            priority=_read_priority(request.priority),
            gang=request.gang,
            trusted_group=request.trusted_group,
            request=(
                _read_memory(request.memory_request) if request.HasField("memory_request") else None
            ),
        )

    def read_resize_ask(self, request: Any) -> ResizeAsk:
        has_memory = request.HasField("memory")
        return ResizeAsk(
            memory=_read_memory(request.memory) if has_memory else None,
            share_ppm=Ppm(request.share_ppm) if request.HasField("share_ppm") else None,
            policy=_read_policy(request.policy),
            priority=_read_priority(request.priority) if request.HasField("priority") else None,
        )

    # --- to clients ---

    def write_grant_request(self, ask: GrantAsk) -> Any:
        queue = None
        if ask.queue is not None:
            queue = self.message("QueueAsk")(
                namespace=ask.queue.namespace,
                queue=ask.queue.queue,
                priority_class=ask.queue.priority_class,
                preempted=ask.queue.preempted,
                max_execution_seconds=ask.queue.max_execution_s,
            )
        return self.message("CreateGrantRequest")(
            queue=queue,
            gpus=ask.gpus,
            memory=self._memory(ask.memory),
            memory_request=None if ask.request is None else self._memory(ask.request),
            share_ppm=ask.share_ppm,
            policy=_POLICY_NUMBERS[ask.policy],
            name=ask.name,
            gpu_uuids=list(ask.gpu_uuids),
            wait_seconds=ask.wait_s,
            driver_path=ask.driver_path,
            nvml_path=ask.nvml_path,
            command=ask.command,
            priority=ask.priority,
            gang=ask.gang,
            trusted_group=ask.trusted_group,
        )

    def write_resize_request(self, grant: str, ask: ResizeAsk) -> Any:
        request = self.message("ResizeGrantRequest")(grant=grant)
        if ask.memory is not None:
            request.memory.CopyFrom(self._memory(ask.memory))
        if ask.share_ppm is not None:
            request.share_ppm = ask.share_ppm
        if ask.policy is not None:
            request.policy = _POLICY_NUMBERS[ask.policy]
        if ask.priority is not None:
            request.priority = ask.priority
        return request

    def _memory(self, ask: MemoryAsk) -> Any:
        memory = self.message("Memory")
        if ask.amount_bytes is not None:
            return memory(bytes=ask.amount_bytes)
        return memory(part_ppm=ask.part_ppm)

    def write_grant(self, view: GrantView) -> Any:
        return self.message("Grant")(
            grant=view.grant,
            name=view.name,
            uid=view.uid,
            pid=view.pid,
            command=view.command,
            policy=_POLICY_NUMBERS[view.policy],
            state=view.state,
            created_unix_seconds=view.created_unix_s,
            processes=view.processes,
            tamper_events_total=view.tamper_events_total,
            directory=view.directory,
            workload=view.workload,
            devices=[self._device(device) for device in view.devices],
            priority=view.priority,
            held=view.held,
            gang=view.gang,
            trusted_group=view.trusted_group,
        )

    def write_waiting(self, step: Waiting) -> Any:
        message = self.message("Waiting")(
            position=step.position,
            reason=step.reason,
            waiting=step.waiting,
            workload=step.workload,
        )
        if step.estimate_s is not None:
            message.estimate_seconds = step.estimate_s
        return message

    def read_waiting(self, message: Any) -> Waiting:
        return Waiting(
            message.position,
            message.reason,
            _maybe(message, "estimate_seconds"),
            message.waiting,
            message.workload,
        )

    def _device(self, view: DeviceView) -> Any:
        return self.message("GrantDevice")(
            gpu_uuid=view.gpu,
            gpu_index=view.gpu_index,
            memory_limit_bytes=view.memory_limit_bytes,
            memory_used_bytes=view.memory_used_bytes,
            memory_peak_bytes=view.memory_peak_bytes,
            share_ratio=view.share_ratio,
            used_ratio=view.used_ratio,
            busy_seconds_total=view.busy_seconds_total,
            throttled_seconds_total=view.throttled_seconds_total,
            launches_total=view.launches_total,
            allocations_total=view.allocations_total,
            denied_total=view.denied_total,
            turn=view.turn,
            wall_bytes=view.wall_bytes,
            memory_request_bytes=view.memory_request_bytes,
            memory_most_bytes=view.memory_most_bytes,
        )

    def _gpu(self, view: GpuView) -> Any:
        return self.message("Gpu")(
            uuid=view.uuid,
            index=view.index,
            name=view.name,
            memory_total_bytes=view.memory_total_bytes,
            memory_used_bytes=view.memory_used_bytes,
            memory_granted_bytes=view.memory_granted_bytes,
            share_granted_ratio=view.share_granted_ratio,
            context_switch_seconds=view.context_switch_s,
            grants=view.grants,
            slots=view.slots,
            utilization_ratio=view.utilization_ratio,
            temperature_celsius=view.temperature_celsius,
            power_watts=view.power_watts,
            sm_count=view.sm_count,
            pci_bus_id=view.pci_bus_id,
            numa_node=view.numa_node,
            health=view.health,
            health_reason=view.health_reason,
        )

    def write_snapshot(self, view: NodeView, taken_unix_s: float) -> Any:
        return self.message("NodeSnapshot")(
            taken_unix_seconds=taken_unix_s,
            version=view.version,
            gpus=[self._gpu(gpu) for gpu in view.gpus],
            grants=[self.write_grant(grant) for grant in view.grants],
            waiting=view.waiting,
            reading_age_seconds=view.reading_age_s,
            driver_version=view.driver_version,
            nvml_error=view.nvml_error,
            processes=[
                self.message("GpuProcess")(
                    pid=one.pid,
                    gpu_uuid=one.gpu,
                    gpu_index=one.gpu_index,
                    memory_bytes=one.memory_bytes,
                    sm_ratio=one.sm_ratio,
                    grant=one.grant or "",
                )
                for one in view.processes
            ],
        )

    def write_event(self, event: NodeEvent) -> Any:
        return self.message("NodeEvent")(
            number=event.number,
            at_unix_seconds=event.at_unix_s,
            kind=event.kind,
            level=event.level,
            text=event.text,
            uid=event.uid,
            grant=event.grant or "",
            pid=event.pid,
            evidence_json=event.evidence,
        )

    def write_trace(self, view: TraceView) -> Any:
        counts = self.message("LaunchCounts")
        return self.message("TraceUpdate")(
            at_ns=view.at_ns,
            counts=[
                counts(
                    device=one.device,
                    launches=one.launches,
                    copies=one.copies,
                    cost_ns=one.cost_ns,
                    waited_ns=one.waited_ns,
                    wait_histogram=one.wait_histogram,
                    gap_histogram=one.gap_histogram,
                    ended=one.ended,
                )
                for one in view.devices
            ],
            grant=view.grant,
            name=view.name,
            probe_ns=view.probe_ns,
        )

    def write_contained(self, view: ContainedView) -> Any:
        return self.message("Contained")(
            number=view.number,
            since_unix_seconds=view.since_unix_s,
            step=view.step,
            rule=view.rule,
            level=view.level,
            whom=view.whom,
            grant=view.grant,
            pid=view.pid,
            uid=view.uid,
            cgroup=view.cgroup,
            evidence_json=view.evidence,
        )

    # --- from the daemon ---

    def read_contained(self, message: Any) -> ContainedView:
        return ContainedView(
            number=message.number,
            since_unix_s=message.since_unix_seconds,
            step=message.step,
            rule=message.rule,
            level=message.level,
            whom=message.whom,
            grant=message.grant,
            pid=message.pid,
            uid=message.uid,
            cgroup=message.cgroup,
            evidence=message.evidence_json or "{}",
        )

    def read_event(self, message: Any) -> NodeEvent:
        return NodeEvent(
            number=message.number,
            at_unix_s=message.at_unix_seconds,
            kind=message.kind,
            level=message.level,
            text=message.text,
            uid=_maybe(message, "uid"),
            grant=GrantId(message.grant) if message.grant else None,
            pid=message.pid,
            evidence=message.evidence_json or "{}",
        )

    def read_grant(self, message: Any) -> GrantView:
        return GrantView(
            grant=GrantId(message.grant),
            name=message.name,
            uid=message.uid,
            pid=message.pid,
            command=message.command,
            policy=_POLICIES.get(message.policy, SharePolicy.HARD),
            state=message.state,
            created_unix_s=message.created_unix_seconds,
            processes=message.processes,
            tamper_events_total=message.tamper_events_total,
            directory=message.directory,
            workload=message.workload,
            devices=tuple(_read_device(device) for device in message.devices),
            priority=message.priority,
            held=message.held,
            gang=message.gang,
            trusted_group=message.trusted_group,
        )

    def read_trace(self, message: Any) -> TraceView:
        return TraceView(
            at_ns=Nanoseconds(message.at_ns),
            devices=tuple(
                TracedDevice(
                    device=one.device,
                    launches=one.launches,
                    copies=one.copies,
                    cost_ns=one.cost_ns,
                    waited_ns=one.waited_ns,
                    wait_histogram=tuple(one.wait_histogram),
                    gap_histogram=tuple(one.gap_histogram),
                    ended=one.ended,
                )
                for one in message.counts
            ),
            grant=message.grant,
            name=message.name,
            probe_ns=_maybe(message, "probe_ns"),
        )

    def read_snapshot(self, message: Any) -> NodeView:
        return NodeView(
            gpus=tuple(_read_gpu(gpu) for gpu in message.gpus),
            grants=tuple(self.read_grant(grant) for grant in message.grants),
            loops=(),
            waiting=message.waiting,
            reading_age_s=_maybe(message, "reading_age_seconds"),
            driver_version=_maybe(message, "driver_version"),
            nvml_error=_maybe(message, "nvml_error"),
            nvml_restarts_total=0,
            version=message.version,
            processes=tuple(_read_process(one) for one in message.processes),
        )


def _read_memory(memory: Any) -> MemoryAsk:
    form = memory.WhichOneof("form")
    if form == "bytes":
        return MemoryAsk(amount_bytes=Bytes(memory.bytes))
    if form == "part_ppm":
        return MemoryAsk(part_ppm=Ppm(memory.part_ppm))
    raise Refused(RefusalKind.INVALID, "memory is missing")


def _read_queue(queue: Any) -> QueueAsk:
    seconds = queue.max_execution_seconds
    if not 0 <= seconds < float("inf"):
        raise Refused(RefusalKind.INVALID, "the maximum run time must be 0 seconds or more")
    return QueueAsk(queue.queue, queue.namespace, queue.priority_class, queue.preempted, seconds)


def _read_policy(number: int) -> SharePolicy | None:
    if number == 0:
        return None
    if number not in _POLICIES:
        raise Refused(RefusalKind.INVALID, f"unknown share policy {number}")
    return _POLICIES[number]


def _read_priority(number: int) -> int:
    if abs(number) > MAX_PRIORITY:
        raise Refused(
            RefusalKind.INVALID,
            f"priority {number} must be between -{MAX_PRIORITY} and {MAX_PRIORITY}",
        )
    return number


def _maybe(message: Any, name: str, cast: Callable[[Any], Any] = lambda value: value) -> Any:
    return cast(getattr(message, name)) if message.HasField(name) else None


def _read_device(message: Any) -> DeviceView:
    return DeviceView(
        gpu=GpuUuid(message.gpu_uuid),
        gpu_index=_maybe(message, "gpu_index"),
        memory_limit_bytes=message.memory_limit_bytes,
        memory_used_bytes=message.memory_used_bytes,
        memory_peak_bytes=message.memory_peak_bytes,
        share_ratio=message.share_ratio,
        used_ratio=_maybe(message, "used_ratio"),
        busy_seconds_total=message.busy_seconds_total,
        throttled_seconds_total=message.throttled_seconds_total,
        launches_total=message.launches_total,
        allocations_total=message.allocations_total,
        denied_total=message.denied_total,
        turn=message.turn,
        wall_bytes=_maybe(message, "wall_bytes"),
        memory_request_bytes=_maybe(message, "memory_request_bytes"),
        memory_most_bytes=_maybe(message, "memory_most_bytes"),
    )


def _read_process(message: Any) -> ProcessView:
    return ProcessView(
        pid=message.pid,
        gpu=GpuUuid(message.gpu_uuid),
        gpu_index=message.gpu_index,
        memory_bytes=_maybe(message, "memory_bytes"),
        sm_ratio=_maybe(message, "sm_ratio"),
        grant=GrantId(message.grant) if message.grant else None,
    )


def _read_gpu(message: Any) -> GpuView:
    return GpuView(
        uuid=GpuUuid(message.uuid),
        index=message.index,
        name=message.name,
        memory_total_bytes=Bytes(message.memory_total_bytes),
        memory_used_bytes=_maybe(message, "memory_used_bytes"),
        memory_granted_bytes=message.memory_granted_bytes,
        share_granted_ratio=message.share_granted_ratio,
        grants=message.grants,
        slots=message.slots,
        utilization_ratio=_maybe(message, "utilization_ratio"),
        temperature_celsius=_maybe(message, "temperature_celsius"),
        power_watts=_maybe(message, "power_watts"),
        sm_count=_maybe(message, "sm_count"),
        pci_bus_id=_maybe(message, "pci_bus_id"),
        numa_node=_maybe(message, "numa_node"),
        health=message.health,
        health_reason=message.health_reason,
        context_switch_s=_maybe(message, "context_switch_seconds"),
    )

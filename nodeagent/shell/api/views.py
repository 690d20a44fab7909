"""Views of the daemon: for callers, for a scrape and for the watchdog."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from nodeagent.core.gpus.mig import unit_of
from nodeagent.core.grants.placement import Load
from nodeagent.core.grants.states import Held
from nodeagent.ports.clock import Clock
from nodeagent.ports.ledger import GrantRecord, GrantState, Spill
from nodeagent.ports.views import (
    DeviceView,
    GpuView,
    GrantView,
    HostFigures,
    LoopView,
    NodeView,
    ProcessView,
    QueueView,
    Samples,
)
from nodeagent.shell.gpus.readings import Gpus
from nodeagent.shell.grants.reading import Grants, Open
from nodeagent.shell.turns import Turns
from nodeagent.shell.watch.watch import Watch
from nodeagent.units import NS_PER_S, WHOLE_PPM, GpuUuid, GrantId, Nanoseconds

HOST_EVERY_NS: Final = 5 * NS_PER_S
RATE_WINDOW_NS: Final = NS_PER_S
"""Rates shown to people are averages over about this long."""


@dataclass(slots=True)
class _Rate:
    """Turns a counter into a rate over the last window."""

    at_ns: int
    value: int
    ratio: float | None = None


class QueueSight(Protocol):
    """State of the node's session with the queue."""

    def workload_of(self, grant: GrantId) -> str:
        """Empty: it is not the queue's."""

    def view(self) -> QueueView | None:
        """None if this node takes no work from a queue."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures from outside the shell, read again for each view."""

    version: str
    read_host: Callable[[], HostFigures | None]
    nvml_restarts: Callable[[], int]
    counters: Callable[[], Samples]
    walls: Callable[[GrantId], Mapping[GpuUuid, int]] = lambda grant: {}
    """The driver's own limits around a grant, by card."""


class Views:
    def __init__(
        self,
        grants: Grants,
        turns: Turns,
        gpus: Gpus,
        clock: Clock,
        queue: QueueSight,
        watch: Watch,
        figures: Figures,
    ) -> None:
        self._grants = grants
        self._turns = turns
        self._gpus = gpus
        self._clock = clock
        self._queue = queue
        self._watch = watch
        self._figures = figures
        self._rates: dict[tuple[GrantId, int], _Rate] = {}
        self.loops: dict[str, float] = {}
        """Name of each loop and when it last completed, Unix seconds."""
        self._host: HostFigures | None = None
        self._host_at_ns = 0

    def sample(self) -> None:
        """Bring the rates up to date; called about once per window."""
        now_ns = self._clock.monotonic_ns()
        if self._host is None or now_ns - self._host_at_ns >= HOST_EVERY_NS:
            self._host, self._host_at_ns = self._figures.read_host(), now_ns
        live = set()
        for grant, opened in self._grants.opens().items():
            for index in range(len(opened.account.physical_bytes)):
                live.add((grant, index))
                self._sample(grant, index, opened, now_ns)
        for key in self._rates.keys() - live:
            del self._rates[key]

    def _sample(self, grant: GrantId, index: int, opened: Open, now_ns: Nanoseconds) -> None:
        value = opened.account.total(index).consumed_ns
        rate = self._rates.get((grant, index))
        if rate is None:
            self._rates[grant, index] = _Rate(now_ns, value)
        elif now_ns - rate.at_ns >= RATE_WINDOW_NS // 2:
            ratio = max(0, value - rate.value) / (now_ns - rate.at_ns)
            self._rates[grant, index] = _Rate(now_ns, value, ratio)

    def whole(self) -> NodeView:
        """View for the daemon itself, without the processes on the GPUs, which the readings
        have."""
        return self._node(list(self._grants.live().values()), ())

    def node(self, grants: Sequence[Held], everybody: bool) -> NodeView:
        """View of these grants and their processes; with `everybody` of all processes on the
        GPUs."""
        return self._node(grants, self._processes(grants, everybody))

    def _node(self, grants: Sequence[Held], processes: tuple[ProcessView, ...]) -> NodeView:
        read_at = self._gpus.read_at_ns
        now_ns = self._clock.monotonic_ns()
        figures = self._figures
        return NodeView(
            gpus=tuple(self._gpu_views()),
            grants=tuple(self.grant(held) for held in grants),
            loops=self.loop_views(),
            waiting=self._grants.waiting(),
            reading_age_s=None if read_at is None else (now_ns - read_at) / NS_PER_S,
            driver_version=self._gpus.driver_version,
            nvml_version=self._gpus.nvml_version,
            readings=tuple(self._gpus.sorted()),
            xids=self._gpus.xids,
            last_xid=self._gpus.last_xid,
            processes=processes,
            host=self._host,
            detections=self._watch.detections,
            suspicions=self._watch.suspicions(),
            acts=self._watch.acts(),
            held=self._watch.held_steps(),
            nvml_error=self._gpus.error,
            nvml_restarts_total=figures.nvml_restarts(),
            version=figures.version,
            counters=figures.counters(),
            queue=self._queue.view(),
        )

    def loop_views(self) -> tuple[LoopView, ...]:
        return tuple(LoopView(name, at) for name, at in sorted(self.loops.items()))

    def _gpu_views(self) -> list[GpuView]:
        loads = self._grants.loads()
        views = []
        for gpu in self._gpus.units():
            load = loads.get(gpu.uuid, Load())
            switch = self._turns.planner.switch_learned(gpu.uuid)
            views.append(
                GpuView(
                    **gpu.figures(),
                    memory_granted_bytes=load.memory_bytes,
                    share_granted_ratio=load.share_ppm / WHOLE_PPM,
                    grants=load.grants,
                    slots=self._gpus.slots_of(gpu),
                    health=self._gpus.health(gpu.uuid).value,
                    health_reason=self._gpus.patient(gpu.uuid).reason,
                    health_changes_total=self._gpus.health_changes[gpu.uuid],
                    context_switch_s=switch.switch_ns / NS_PER_S if switch is not None else None,
                )
            )
        return views

    def _processes(self, grants: Sequence[Held], everybody: bool) -> tuple[ProcessView, ...]:
        grant_of = {
            process.pid: held.record.grant for held in grants for process in held.slots.values()
        }
        return tuple(
            ProcessView(
                one.pid,
                unit_of(gpu, one),
                gpu.index,
                one.memory_bytes,
                one.sm_ratio,
                grant_of.get(one.pid),
            )
            for gpu in self._gpus.sorted()
            for one in gpu.processes
            if one.pid in grant_of or everybody
        )

    def grant(self, held: Held) -> GrantView:
        record = held.record
        opened = self._grants.opened(record.grant)
        indexes: dict[GpuUuid, int] = {gpu.uuid: gpu.index for gpu in self._gpus.units()}
        devices = []
        walls = self._figures.walls(record.grant)
        for index, device in enumerate(record.devices):
            total = opened.account.total(index) if opened is not None else None
            rate = self._rates.get((record.grant, index))
            turn = self._turns.planner.turn(record.grant, device.gpu)
            devices.append(
                DeviceView(
                    gpu=device.gpu,
                    gpu_index=indexes.get(device.gpu),
                    memory_limit_bytes=device.memory_bytes,
                    memory_used_bytes=total.charged_bytes if total else 0,
                    memory_peak_bytes=total.peak_bytes if total else 0,
                    share_ratio=device.share_ppm / WHOLE_PPM,
                    used_ratio=rate.ratio if rate else None,
                    busy_seconds_total=total.consumed_ns / NS_PER_S if total else 0.0,
                    throttled_seconds_total=total.throttled_ns / NS_PER_S if total else 0.0,
                    launches_total=total.launches if total else 0,
                    allocations_total=total.allocs if total else 0,
                    denied_total=total.denied if total else 0,
                    turn=turn.mode.name.lower() if turn else "off",
                    wall_bytes=walls.get(device.gpu),
                    memory_request_bytes=device.request_bytes,
                    memory_most_bytes=device.limit_bytes,
                )
            )
        return GrantView(
            grant=record.grant,
            name=record.name,
            uid=record.owner.uid,
            pid=record.owner.pid,
            command=record.command,
            policy=record.policy,
            state=_shown_state(record, opened),
            created_unix_s=record.created_unix_s,
            processes=len(held.slots),
            tamper_events_total=sum(opened.account.tampers.values()) if opened else 0,
            directory=opened.region.directory if opened else "",
            workload=self._queue.workload_of(record.grant),
            devices=tuple(devices),
            priority=record.priority,
            container=record.container,
            pids=tuple(process.pid for process in held.slots.values()),
            held=self._watch.holding(record.grant),
            gang=record.gang,
            trusted_group=record.trusted_group,
        )


def _shown_state(record: GrantRecord, opened: Open | None) -> str:
    if opened is not None and opened.lost:
        return "lost"
    if record.state is not GrantState.ACTIVE:
        return record.state.value
    if record.spill is not Spill.RESIDENT:
        return record.spill.value
    return "paused" if record.paused else record.state.value

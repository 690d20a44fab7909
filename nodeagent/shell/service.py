"""What the local API offers: grants for whoever asks, their own for everybody, all of them for
root.

Implements the NodeService port; peers come with their identity from the kernel.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from nodeagent.config import GrantSettings
from nodeagent.core import events as ev
from nodeagent.core.grants import Held
from nodeagent.core.histogram import WAIT_BOUNDS_S, Histogram
from nodeagent.core.mig import unit_of
from nodeagent.core.placement import Load
from nodeagent.ports import (
    Clock,
    ContainedView,
    DeviceView,
    GpuView,
    GrantAsk,
    Granted,
    GrantRecord,
    GrantView,
    HostFigures,
    LoopView,
    MemoryAsk,
    NodeEvent,
    NodeView,
    Peer,
    ProcessView,
    RefusalKind,
    Refused,
    ResizeAsk,
    TraceView,
    Waiting,
)
from nodeagent.shell.gpus import Gpus
from nodeagent.shell.journal import Journal
from nodeagent.shell.keeper import Answer, Keeper, Open
from nodeagent.shell.kernel import KernelDesk
from nodeagent.shell.queue import QueueDesk
from nodeagent.shell.turns import Turns
from nodeagent.shell.watch import Watch
from nodeagent.units import (
    NS_PER_S,
    WHOLE_PPM,
    GpuUuid,
    GrantId,
    Nanoseconds,
    RequestId,
    SharePolicy,
)

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/@-]{0,62}")
SMALLEST_SHARE_PPM: Final = WHOLE_PPM // 100
LONGEST_PATH_BYTES: Final = 511
LONGEST_COMMAND: Final = 256
HOST_EVERY_NS: Final = 5 * NS_PER_S
RATE_WINDOW_NS: Final = NS_PER_S
"""Rates shown to people are averages over about this long."""


NO_ROOM: Final = (
    "the daemon has no file descriptors left for another grant: raise its limit (LimitNOFILE= of"
    " the unit, or the container runtime's), or wait until a grant ends"
)


@dataclass(slots=True)
class _Rate:
    """Turns a counter into a rate over the last window."""

    at_ns: int
    value: int
    ratio: float | None = None


class Service:
    def __init__(
        self,
        settings: GrantSettings,
        keeper: Keeper,
        turns: Turns,
        gpus: Gpus,
        clock: Clock,
        version: str,
    ) -> None:
        self.settings = settings
        """May be replaced while the daemon runs."""
        self._keeper = keeper
        self._turns = turns
        self._gpus = gpus
        self._clock = clock
        self._version = version
        self._requests = itertools.count(1)
        self._rates: dict[tuple[GrantId, int], _Rate] = {}
        self.loops: dict[str, float] = {}
        """Name of each loop and when it last completed, Unix seconds."""
        self.operator_uids: frozenset[int] = frozenset({0})
        self.queue: QueueDesk | None = None
        """Set where the node takes work from a queue controller."""
        self.kernel: KernelDesk | None = None
        self.counters: Callable[[], dict[str, float]] = dict
        self.nvml_restarts: Callable[[], int] = lambda: 0
        self.journal: Journal | None = None
        self.watch: Watch | None = None
        self.read_host: Callable[[], HostFigures | None] = lambda: None
        self._host: HostFigures | None = None
        self._host_at_ns = 0
        self.acts: Callable[[], dict[str, int]] = dict
        self.has_room: Callable[[], bool] = lambda: True
        """Whether one more grant leaves enough file descriptors for those that are there."""
        self.wait_s = Histogram(WAIT_BOUNDS_S)

    # --- grants ---

    async def create_grant(
        self, peer: Peer, ask: GrantAsk
    ) -> AsyncGenerator[Granted | Waiting, None]:
        """Progress until the grant. Raises Refused; ends the request when the caller goes away."""
        check_ask(ask, self.settings.max_wait_s)
        if ask.queue is not None:
            async with contextlib.aclosing(self._through_queue(peer, ask)) as progress:
                async for step in progress:
                    yield step
            return
        self._check_priority(peer, ask.priority)
        if not self.has_room():
            raise Refused(RefusalKind.EXHAUSTED, NO_ROOM)
        request = RequestId(next(self._requests))
        grant = GrantId(str(uuid.uuid4()))
        event = ev.Asked(
            request,
            grant,
            ask,
            peer.handle.process,
            self._clock.unix_s(),
            may_wait=ask.wait_s > 0,
        )
        began_ns = self._clock.monotonic_ns()
        answers = self._keeper.ask(event, peer.handle.duplicate())
        end_ns = self._clock.monotonic_ns() + int(ask.wait_s * NS_PER_S)
        reason = "no answer"
        try:
            while True:
                answer = await self._next_answer(answers, end_ns)
                if answer is None:
                    told = f"waited {ask.wait_s:g} s in vain: {reason}"
                    raise Refused(RefusalKind.EXHAUSTED, told)
                if isinstance(answer, Refused):
                    raise answer
                if isinstance(answer, Waiting):
                    reason = answer.reason
                    yield answer
                    continue
                self.wait_s.observe((self._clock.monotonic_ns() - began_ns) / NS_PER_S)
                yield Granted(self._view(self._held(answer)))
                return
        finally:
            self._keeper.withdraw(request, grant)

    async def _through_queue(
        self, peer: Peer, ask: GrantAsk
    ) -> AsyncGenerator[Granted | Waiting, None]:
        """The same by way of the queue controller; a wait of 0 has no end."""
        if self.queue is None:
            raise Refused(
                RefusalKind.UNAVAILABLE,
                "this node takes no work from a queue: set queue.server in the daemon's"
                " configuration",
            )
        reason = "no answer"
        began_ns = self._clock.monotonic_ns()
        try:
            async with (
                asyncio.timeout(ask.wait_s or None),
                contextlib.aclosing(self.queue.wait(peer, ask)) as progress,
            ):
                async for step in progress:
                    if not isinstance(step, Waiting):
                        self.wait_s.observe((self._clock.monotonic_ns() - began_ns) / NS_PER_S)
                        yield Granted(self._view(self._held(step)))
                        return
                    reason = step.reason
                    yield step
        except TimeoutError:
            raise Refused(
                RefusalKind.EXHAUSTED, f"waited {ask.wait_s:g} s in vain: {reason}"
            ) from None

    async def _next_answer(self, answers: asyncio.Queue[Answer], end_ns: int) -> Answer | None:
        """None when there is none in time. Without a wait the answer is in the queue already."""
        if not answers.empty():
            return answers.get_nowait()
        left_s = (end_ns - self._clock.monotonic_ns()) / NS_PER_S
        if left_s <= 0:
            return None
        # Not wait_for: before Python 3.12 it may swallow a cancellation that comes with the answer,
        # and the request would outlive its caller.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(left_s):
                return await answers.get()
        return None if answers.empty() else answers.get_nowait()  # it came at the last moment

    def list_grants(self, peer: Peer) -> list[GrantView]:
        return [self._view(held) for held in self._visible(peer)]

    def resize_grant(self, peer: Peer, grant: str, ask: ResizeAsk) -> GrantView:
        found = self._find(peer, grant)
        if ask == ResizeAsk():
            raise Refused(
                RefusalKind.INVALID, "nothing to change: give memory, cores, policy or priority"
            )
        self._check_priority(peer, ask.priority)
        if ask.memory is not None:
            _check_memory(ask.memory)
        if ask.share_ppm is not None:
            _check_share(ask.share_ppm)
        self._keeper.apply(ev.Resized(found, ask))
        return self._view(self._held(found))

    def pause_grant(self, peer: Peer, grant: str, paused: bool) -> GrantView:
        found = self._find(peer, grant)
        if not paused and self.queue is not None:
            self.queue.check_resume(found)
        self._keeper.apply(ev.PauseSet(found, paused))
        if not paused and self.watch is not None:
            self.watch.forgive(found)
        return self._view(self._held(found))

    def release_grant(self, peer: Peer, grant: str) -> GrantView:
        found = self._find(peer, grant)
        view = self._view(self._held(found))
        self._keeper.apply(ev.Released(found))
        held = self._keeper.book.grants.get(found)
        return self._view(held) if held is not None else view

    async def events(self, peer: Peer, after: int, follow: bool) -> AsyncGenerator[NodeEvent, None]:
        """Operators see all; others what is about their own grants and processes."""
        if self.journal is None:
            return
        async with contextlib.aclosing(self.journal.follow(after, follow)) as events:
            async for event in events:
                if peer.uid in self.operator_uids or event.uid == peer.uid:
                    yield event

    async def trace(
        self, peer: Peer, pid: int, interval_s: float
    ) -> AsyncGenerator[TraceView, None]:
        """Raises Refused."""
        if self.kernel is None:
            raise Refused(RefusalKind.UNAVAILABLE, "no tracing here")
        async with contextlib.aclosing(self.kernel.trace(peer, pid, interval_s)) as views:
            async for view in views:
                yield view

    # --- what is held ---

    def contained(self, peer: Peer) -> list[ContainedView]:
        """Operators see all; others what is about their own grants and processes."""
        if self.watch is None:
            return []
        held = self.watch.contained()
        return [one for one in held if peer.uid in self.operator_uids or one.uid == peer.uid]

    def let_go(self, peer: Peer, numbers: Sequence[int], everything: bool) -> list[ContainedView]:
        if self.watch is None or peer.uid not in self.operator_uids:
            raise Refused(
                RefusalKind.DENIED, "root alone lets go what is held because of a suspicion"
            )
        held = {one.number: one for one in self.watch.contained()}
        wanted = list(held) if everything else list(numbers)
        for number in wanted:
            if number not in held:
                raise Refused(
                    RefusalKind.NOT_FOUND,
                    f"nothing is held under number {number}: see `sluice contained`",
                )
        done = self.watch.let_go(wanted, f"by hand, uid {peer.uid}")
        if len(done) < len(wanted):
            failed = ", ".join(str(number) for number in wanted if number not in done)
            raise Refused(
                RefusalKind.UNAVAILABLE,
                f"number {failed} could not be let go; the daemon's log says why",
            )
        return [held[number] for number in done]

    # --- views ---

    def sample(self) -> None:
        """Bring the rates up to date; called about once per window."""
        now_ns = self._clock.monotonic_ns()
        if self._host is None or now_ns - self._host_at_ns >= HOST_EVERY_NS:
            self._host, self._host_at_ns = self.read_host(), now_ns
        live = set()
        for grant, opened in self._keeper.open.items():
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

    def node_view(self, peer: Peer | None) -> NodeView:
        """`peer` None: the daemon itself, which sees all."""
        read_at = self._gpus.read_at_ns
        now_ns = self._clock.monotonic_ns()
        grants = list(self._keeper.book.grants.values()) if peer is None else self._visible(peer)
        return NodeView(
            gpus=tuple(self._gpu_views()),
            grants=tuple(self._view(held) for held in grants),
            loops=self.loop_views(),
            waiting=len(self._keeper.book.queue),
            reading_age_s=None if read_at is None else (now_ns - read_at) / NS_PER_S,
            driver_version=self._gpus.driver_version,
            nvml_version=self._gpus.nvml_version,
            readings=tuple(self._gpus.sorted()),
            xids=self._gpus.xids,
            last_xid=self._gpus.last_xid,
            processes=() if peer is None else self._processes(peer, grants),
            host=self._host,
            detections=self.watch.detections if self.watch else {},
            suspicions=self.watch.suspicions() if self.watch else {},
            acts=self.acts(),
            held=self.watch.held_steps() if self.watch else {},
            nvml_error=self._gpus.error,
            nvml_restarts_total=self.nvml_restarts(),
            version=self._version,
            counters=self.counters(),
            queue=self.queue.view() if self.queue is not None else None,
        )

    def loop_views(self) -> tuple[LoopView, ...]:
        return tuple(LoopView(name, at) for name, at in sorted(self.loops.items()))

    def _gpu_views(self) -> list[GpuView]:
        loads = self._keeper.book.loads()
        slots = self.settings.slots_per_gpu
        views = []
        for gpu in self._gpus.units():
            load = loads.get(gpu.uuid, Load())
            views.append(
                GpuView(
                    uuid=gpu.uuid,
                    index=gpu.index,
                    name=gpu.name,
                    memory_total_bytes=gpu.memory_total_bytes,
                    memory_used_bytes=gpu.memory_used_bytes,
                    memory_granted_bytes=load.memory_bytes,
                    share_granted_ratio=load.share_ppm / WHOLE_PPM,
                    grants=load.grants,
                    slots=slots,
                    utilization_ratio=gpu.utilization_ratio,
                    temperature_celsius=gpu.temperature_celsius,
                    power_watts=gpu.power_watts,
                    sm_count=gpu.sm_count,
                    pci_bus_id=gpu.pci_bus_id,
                    numa_node=gpu.numa_node,
                    health=self._gpus.health(gpu.uuid).value,
                    health_reason=self._gpus.patient(gpu.uuid).reason,
                    health_changes_total=self._gpus.health_changes[gpu.uuid],
                )
            )
        return views

    def _processes(self, peer: Peer, grants: list[Held]) -> tuple[ProcessView, ...]:
        """Root sees all processes on the GPUs, others those of their own grants."""
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
            if one.pid in grant_of or peer.uid in self.operator_uids
        )

    def _view(self, held: Held) -> GrantView:
        record = held.record
        opened = self._keeper.open.get(record.grant)
        indexes: dict[GpuUuid, int] = {gpu.uuid: gpu.index for gpu in self._gpus.units()}
        devices = []
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
            workload=self.queue.workload_of(record.grant) if self.queue else "",
            devices=tuple(devices),
            priority=record.priority,
            container=record.container,
            pids=tuple(process.pid for process in held.slots.values()),
        )

    # --- who may what ---

    def _check_priority(self, peer: Peer, priority: int | None) -> None:
        highest = self.settings.max_user_priority
        if priority is not None and priority > highest and peer.uid not in self.operator_uids:
            raise Refused(
                RefusalKind.INVALID,
                f"priority {priority}: uid {peer.uid} may ask for {highest} at most"
                " (grants.max_user_priority)",
            )

    def _visible(self, peer: Peer) -> list[Held]:
        grants = self._keeper.book.grants.values()
        if peer.uid in self.operator_uids:
            return list(grants)
        return [held for held in grants if held.record.owner.uid == peer.uid]

    def _find(self, peer: Peer, text: str) -> GrantId:
        """By id, by the beginning of an id, or by name; what the peer may not see does not
        exist."""
        visible = [held.record for held in self._visible(peer)]
        exact = [record.grant for record in visible if record.grant == text]
        named = [record.grant for record in visible if record.name and record.name == text]
        prefixed = [
            record.grant for record in visible if len(text) >= 4 and record.grant.startswith(text)
        ]
        for found in (exact, named, prefixed):
            if len(found) == 1:
                return found[0]
            if len(found) > 1:
                listed = ", ".join(found[:5])
                raise Refused(RefusalKind.INVALID, f"{text!r} is more than one grant: {listed}")
        raise Refused(RefusalKind.NOT_FOUND, f"no grant {text[:64]!r}, see `sluice ps`")

    def _held(self, grant: GrantId) -> Held:
        held = self._keeper.book.grants.get(grant)
        if held is None:
            raise Refused(RefusalKind.NOT_FOUND, f"grant {grant} has ended")
        return held


def _shown_state(record: GrantRecord, opened: Open | None) -> str:
    if opened is not None and opened.lost:
        return "lost"
    return "paused" if record.paused and record.state == "active" else record.state.value


def check_ask(ask: GrantAsk, max_wait_s: float) -> None:
    """Everything about a request that needs no GPU to judge. Raises Refused."""
    problems = []
    if ask.name and not NAME.fullmatch(ask.name):
        problems.append(
            "a name has up to 63 letters, digits and _.:/@-, and starts with one of the first two"
        )
    if not 0 <= ask.wait_s <= max_wait_s:
        problems.append(f"waiting is possible for 0 to {max_wait_s:g} s")
    for path in (ask.driver_path, ask.nvml_path):
        if path and (
            not path.startswith("/")
            or "\0" in path
            or len(path.encode(errors="surrogateescape")) > LONGEST_PATH_BYTES
        ):
            problems.append(
                f"a driver path is absolute and at most {LONGEST_PATH_BYTES} bytes long"
            )
    if len(ask.command) > LONGEST_COMMAND or not ask.command.isprintable():
        problems.append(
            f"a command line is shown in at most {LONGEST_COMMAND} printable characters"
        )
    if ask.policy is SharePolicy.EXCLUSIVE and ask.share_ppm != WHOLE_PPM:
        problems.append("an exclusive grant has all of the GPU's time: leave --cores out")
    if problems:
        raise Refused(RefusalKind.INVALID, "; ".join(problems))
    _check_memory(ask.memory)
    _check_share(ask.share_ppm)


def _check_memory(memory: MemoryAsk) -> None:
    amount, part = memory.amount_bytes, memory.part_ppm
    if (amount is None) == (part is None):
        raise Refused(RefusalKind.INVALID, "memory is an amount or a part, one of the two")
    if amount is not None and not 1 << 20 <= amount <= 1 << 53:
        raise Refused(RefusalKind.INVALID, "memory is at least 1 MiB and at most 8 PiB")
    if part is not None and not 0 < part <= WHOLE_PPM:
        raise Refused(RefusalKind.INVALID, "a part of the memory is above 0 and at most the whole")


def _check_share(share_ppm: int) -> None:
    if not SMALLEST_SHARE_PPM <= share_ppm <= WHOLE_PPM:
        raise Refused(RefusalKind.INVALID, "a share of the GPU's time is 1 to 100 percent")

"""The node's real desk at the queue over the real wire, with a keeper that only counts: no GPU, no processes."""

from __future__ import annotations

import asyncio
import errno
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from nodeagent import native
from nodeagent.adapters.api.wire import Wire
from nodeagent.adapters.queue.client import GrpcQueueLink
from nodeagent.core.grants import events as ev
from nodeagent.ports.clients import GrantAsk, MemoryAsk, Peer, QueueAsk, Refused, Waiting
from nodeagent.ports.ledger import Spill
from nodeagent.ports.queue import Capacity, Done, Fence, ReportedGpu, Work, WorkKey
from nodeagent.ports.views import NodeEvent
from nodeagent.settings.daemon import QueueSettings
from nodeagent.shell.queue.manager import QueueManager
from nodeagent.units import Bytes, GpuUuid, GrantId, Ppm, SharePolicy

GIB = 1 << 30


@dataclass
class MemoryLedger:
    fence: Fence = field(default_factory=Fence)
    works: dict[WorkKey, Work] = field(default_factory=dict)
    done: list[Done] = field(default_factory=list)

    def load_queue(self) -> tuple[Fence, list[Work], list[Done]]:
        return self.fence, list(self.works.values()), list(self.done)

    def store_fence(self, fence: Fence) -> None:
        assert fence.term >= self.fence.term or fence.cluster_id != self.fence.cluster_id
        self.fence = fence

    def store_work(self, work: Work) -> None:
        self.works[work.key] = work

    def drop_work(self, key: WorkKey, done: Done | None) -> None:
        if done is not None:
            self.done.append(done)
        self.works.pop(key, None)


class CountingKeeper:
    """Grants everything; knows what was started, paused and signalled."""

    def __init__(self) -> None:
        self.grants: dict[GrantId, Any] = {}
        self.on_ended: list[Callable[[GrantId], None]] = []
        self.started: list[str] = []
        self.paused: set[GrantId] = set()
        self.signals: list[tuple[GrantId, int]] = []

    def live(self) -> dict[GrantId, Any]:
        return self.grants

    def grant(self, grant: GrantId | None) -> Any:
        if grant not in self.grants:
            return None
        return SimpleNamespace(record=SimpleNamespace(spill=Spill.RESIDENT))

    def ask_now(self, ask: GrantAsk, owner: Any, **how: Any) -> GrantId:
        grant = GrantId(str(uuid.uuid4()))
        self.grants[grant] = ask
        self.started.append(ask.name)
        return grant

    def apply(self, event: Any) -> None:
        if isinstance(event, ev.PauseSet):
            (self.paused.add if event.paused else self.paused.discard)(event.grant)

    def signal(self, grant: GrantId, number: int) -> int:
        self.signals.append((grant, number))
        asyncio.get_running_loop().call_soon(self.end, grant)
        return 1

    def end(self, grant: GrantId) -> None:
        if self.grants.pop(grant, None) is not None:
            for ended in self.on_ended:
                ended(grant)


class FixedCapacity:
    queue_grants: frozenset[GrantId] = frozenset()

    def capacity(self) -> Capacity:
        gpu = ReportedGpu(GpuUuid("GPU-0"), 0, "H100", Bytes(80 * GIB), 10, "healthy")
        return Capacity((gpu,))

    def usage(self, works: Any) -> list[Any]:
        return []


class Spills:
    """Whatever is asked for can be, or is refused with what `refusals` has next."""

    def __init__(self) -> None:
        self.done: list[tuple[str, GrantId]] = []
        self.refusals: list[Refused] = []

    async def spill(self, grant: GrantId) -> None:
        self._do("spill", grant)

    async def resume(self, grant: GrantId) -> None:
        self._do("resume", grant)

    def _do(self, what: str, grant: GrantId) -> None:
        self.done.append((what, grant))
        if self.refusals:
            raise self.refusals.pop(0)


class PuppetHandle:
    """Handle of a process that waits. A closed one cannot be duplicated, as with a file descriptor."""

    process = SimpleNamespace(pid=1, uid=0)

    def __init__(self) -> None:
        self.closed = False

    def duplicate(self) -> PuppetHandle:
        if self.closed:
            raise OSError(errno.EBADF, "closed")
        return PuppetHandle()

    def close(self) -> None:
        self.closed = True


class Puppet:
    """One node. `wait` is what `sluice run --queue` does."""

    def __init__(self, server: str, node: str = "n1", ledger: MemoryLedger | None = None) -> None:
        settings = QueueSettings(server=server, node_name=node, namespace="team-a")
        wire = Wire(native.locate().wire_descriptors)
        self.ledger = ledger or MemoryLedger()
        self.keeper = CountingKeeper()
        self.failures: list[BaseException] = []
        self.events: list[NodeEvent] = []
        """Events of this node's journal."""
        self.spills = Spills()
        self.desk = QueueManager(
            settings,
            GrpcQueueLink(settings, node, "boot", "test", wire),
            self.ledger,
            self.keeper,  # type: ignore[arg-type]  # as much of a keeper as the desk uses
            FixedCapacity(),  # type: ignore[arg-type]
            boot_ns=lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME),
            user_name=str,
            events=lambda number: [one for one in self.events if one.number > number],
            spills=self.spills,
            fatal=self.failures.append,
        )

    async def __aenter__(self) -> Puppet:
        await self.desk.start()
        return self

    async def __aexit__(self, *what: object) -> None:
        await self.desk.close()
        assert self.failures == []

    async def wait(
        self,
        name: str,
        steps: list[Waiting] | None = None,
        handle: PuppetHandle | None = None,
        **queue: Any,
    ) -> GrantId:
        """Wait in the queue until the grant runs."""
        peer = Peer(handle or PuppetHandle())  # type: ignore[arg-type]
        ask = GrantAsk(
            1,
            MemoryAsk(amount_bytes=Bytes(4 * GIB)),
            Ppm(200_000),
            SharePolicy.HARD,
            name=name,
            queue=QueueAsk("q", **queue),
        )
        async for step in self.desk.wait(peer, ask):
            if not isinstance(step, Waiting):
                return step
            if steps is not None:
                steps.append(step)
        raise AssertionError("the wait ended without a grant")


async def until(what: str, probe: Callable[[], Any], deadline_s: float = 60.0) -> Any:
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        found = probe()
        if found:
            return found
        await asyncio.sleep(0.05)
    raise AssertionError(f"gave up waiting until {what}")

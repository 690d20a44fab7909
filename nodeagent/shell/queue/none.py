"""A node that takes no work from a queue controller: every question is answered so."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator

from nodeagent.ports.clients import GrantAsk, Peer, RefusalKind, Refused, Waiting
from nodeagent.ports.views import QueueView
from nodeagent.units import GpuUuid, GrantId


class NoQueue:
    async def wait(self, peer: Peer, ask: GrantAsk) -> AsyncGenerator[Waiting | GrantId, None]:
        raise Refused(
            RefusalKind.UNAVAILABLE,
            "this node takes no work from a queue: set queue.server in the daemon's configuration",
        )
        yield  # type: ignore[unreachable]  # what makes it a generator, as the desk's is

    def check_resume(self, grant: GrantId) -> None:
        return None

    def workload_of(self, grant: GrantId) -> str:
        return ""

    def place_of(self, grant: GrantId) -> tuple[str, str]:
        return "", ""

    def decided_gpus(self) -> Counter[GpuUuid]:
        return Counter()

    def view(self) -> QueueView | None:
        return None

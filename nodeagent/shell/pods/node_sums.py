"""Keeps the sums over this node's GPUs in its Node object, where Kubernetes' scheduler counts them.

Other writes there (a kubelet that restarts with an empty checkpoint sets extended resources to
zero; a Node object is created again) are corrected as soon as the watch reports them. With the
setting off, sums that were written before are removed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from nodeagent.core.kubelet.sums import patch
from nodeagent.ports.views import Finding
from sluicecommon.background import BackgroundTasks

log = logging.getLogger(__name__)

PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
LOOK_S: Final = 30.0
"""GPUs may come and go without a word of the Node."""


class Known(Protocol):
    @property
    def capacity(self) -> Mapping[str, str]: ...
    @property
    def counted(self) -> Sequence[str]: ...


class NodeStatus(Protocol):
    """This node's Node."""

    node: str
    on_node: list[Callable[[], None]]

    @property
    def facts(self) -> Known | None:
        """None if unknown."""

    async def count(self, changes: Mapping[str, str | None], counted: str | None) -> str:
        """Writes capacity and the names that are ours; why it could not, empty when it could."""


class NodeSums:
    """Implements Endpoint."""

    def __init__(
        self,
        status: NodeStatus,
        wanted: Callable[[], Mapping[str, int] | None],
        fatal: Callable[[BaseException], None],
    ) -> None:
        """`wanted`: by resource; empty to count nothing, None while it is not known."""
        self.trouble = ""
        self.writes_total = 0
        self.more: Callable[[], Mapping[str, int]] = dict
        """Amounts of pods that Kubernetes counts although their memory is not on the GPUs: they are
        added, so that the sums have the room that there is."""
        self._written: Mapping[str, int] | None = None
        self._status = status
        self._wanted = wanted
        self._background = BackgroundTasks(fatal)
        self._look = asyncio.Event()

    async def start(self) -> None:
        self._status.on_node.append(self._look.set)
        self._background.spawn(self._loop(), "sums in the Node's capacity")

    async def close(self) -> None:
        await self._background.close()

    def look_soon(self) -> None:
        """GPUs have been read: they may have changed."""
        if self._all() != self._written:
            self._look.set()

    def _all(self) -> Mapping[str, int] | None:
        wanted, more = self._wanted(), self.more()
        if not wanted or not more:
            return wanted
        return {name: amount + more.get(name, 0) for name, amount in wanted.items()}

    def is_written(self) -> bool:
        """True if the Node has the sums, as last seen by the watch; also if it is to have none."""
        wanted, facts = self._all(), self._status.facts
        if wanted is None or facts is None:
            return False
        return all(facts.capacity.get(name) == str(amount) for name, amount in wanted.items())

    async def _loop(self) -> None:
        pause_s = PAUSE_S
        while True:
            self._look.clear()
            trouble = await self.write()
            if trouble and trouble != self.trouble:
                log.warning(
                    "kubernetes: GPUs are not counted on node %s: %s", self._status.node, trouble
                )
            self.trouble = trouble
            if trouble:
                await asyncio.sleep(pause_s)
                pause_s = min(LONGEST_PAUSE_S, pause_s * 2)
                continue
            pause_s = PAUSE_S
            try:
                async with asyncio.timeout(LOOK_S):
                    await self._look.wait()
            except TimeoutError:
                continue

    async def write(self) -> str:
        """Writes the difference, if there is any; returns the reason if it could not be written."""
        facts = self._status.facts
        wanted = self._all()
        if facts is None or wanted is None:
            return ""
        self._written = wanted
        changes = patch(wanted, facts.counted, facts.capacity)
        names = ",".join(sorted(wanted))
        if not changes and names == ",".join(sorted(facts.counted)):
            return ""
        trouble = await self._status.count(changes, names or None)
        if not trouble:
            self.writes_total += 1
            shown = ", ".join(f"{key} {value or 'not any more'}" for key, value in changes.items())
            log.info("kubernetes: node %s counts %s", self._status.node, shown or names)
            # The watch reports our own write; until then it is not written again.
            await asyncio.sleep(PAUSE_S)
        return trouble

    def finding(self) -> Finding:
        """Finding for `sluice doctor`."""
        if self.trouble:
            return Finding(
                "countable",
                "warning",
                f"memory and cores are not counted on the Node: {self.trouble}",
                "give the agent get, list and watch of nodes and patch of nodes/status, or set"
                " kubelet.advertise_sums = false and let another scheduler count",
            )
        wanted = self._wanted()
        what = ", ".join(f"{name} {amount}" for name, amount in (wanted or {}).items())
        return Finding("countable", "ok", what or "nothing is counted (kubelet.advertise_sums)")

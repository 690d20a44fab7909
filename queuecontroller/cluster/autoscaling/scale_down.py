"""Annotations of nodes by which an autoscaler's scale-down does not break GPU shares.

Autoscalers add up what is free of a resource on a node, so they drain nodes whose shares fit on no
single card elsewhere. Such nodes of the templates get the annotations by which Cluster Autoscaler
and Karpenter leave a node alone, and `sluice.dev/scale-down: kept`; where all shares fit on other
nodes, it is `possible`. A node that has an autoscaler's annotation from another writer is not
changed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from queuecontroller.cluster.autoscaling.templates import Template
from queuecontroller.cluster.cache.objects import Document, annotations_of, labels_of
from queuecontroller.scheduler.placement.spare_nodes import spare_nodes
from queuecontroller.state.shell import Shell
from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.errors import ApiAway, ApiRefused
from sluicecommon.kubernetes.resources import NODES

MARK: Final = "sluice.dev/scale-down"
KEPT, POSSIBLE = "kept", "possible"
AUTOSCALERS: Final = (
    "cluster-autoscaler.kubernetes.io/scale-down-disabled",
    "karpenter.sh/do-not-disrupt",
)
ANNOTATIONS: Final = (MARK, *AUTOSCALERS)
ROUNDS: Final = 6
"""Looks for new nodes in the time of one look here."""
log = logging.getLogger(__name__)


def changes(annotations: Mapping[str, str], verdict: str) -> dict[str, str | None]:
    """The annotations to change on a node; `verdict` is KEPT, POSSIBLE, or empty for neither."""
    mark = annotations.get(MARK, "")
    if mark != KEPT and any(annotations.get(name) for name in AUTOSCALERS):
        return {MARK: None} if mark else {}
    wanted: dict[str, str | None] = {MARK: verdict or None}
    wanted |= dict.fromkeys(AUTOSCALERS, "true" if verdict == KEPT else None)
    return {name: value for name, value in wanted.items() if annotations.get(name) != value}


class ScaleDownHints:
    def __init__(
        self,
        shell: Shell,
        client: ApiClient,
        templates: tuple[Template, ...],
        nodes: Callable[[], Mapping[str, Document]],
        may_write: Callable[[], bool],
        every_s: float,
    ) -> None:
        """`nodes`: the API server's nodes; they have their labels and ANNOTATIONS."""
        self._shell = shell
        self._client = client
        self._templates = templates
        self._nodes = nodes
        self._may_write = may_write
        self._every_s = every_s
        self._before: dict[str, str] = {}
        """Verdicts of the last look: what is the same twice is written."""

    async def run(self) -> None:
        """Look and write until cancelled."""
        while True:
            if self._may_write():
                try:
                    await self.look()
                except (ApiAway, ApiRefused) as error:
                    log.warning("annotations for scaling down: %s", error)
            await asyncio.sleep(self._every_s)

    async def look(self) -> None:
        nodes = self._nodes()
        verdicts = self._verdicts(nodes)
        stable = {name: one for name, one in verdicts.items() if self._before.get(name) == one}
        self._before = verdicts
        for name, verdict in stable.items():
            changed = changes(annotations_of(nodes[name]), verdict)
            if changed:
                await self._write(name, changed)

    def _verdicts(self, nodes: Mapping[str, Document]) -> dict[str, str]:
        """Verdicts of the templates' nodes; one that is not judged now is left as it is, unless
        nothing is held on it any more."""
        room = self._shell.book.nodes_room
        room.follow(self._shell.now_ns())
        found: dict[str, str] = {}
        for template in self._templates:
            selector = template.selector.items()
            mine = [name for name, one in nodes.items() if selector <= labels_of(one).items()]
            foreign = frozenset(room.stock.nodes.keys() - set(mine))
            for name, is_spare in spare_nodes(room.stock, mine, foreign).items():
                found[name] = POSSIBLE if is_spare else KEPT
            for name in mine:
                if name in room.stock.nodes and not room.stock.held_at(name):
                    found[name] = ""
        return found

    async def _write(self, name: str, changed: Mapping[str, str | None]) -> None:
        try:
            await self._client.merge_patch(NODES, name, {"metadata": {"annotations": changed}})
        except ApiRefused as refused:
            if not refused.not_found:
                raise

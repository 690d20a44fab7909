"""A scheduler, a clock and an API server for tests of gangs."""

from __future__ import annotations

from typing import Any

from queuecontroller.gpushares.extender.answers import Defaults, Extender
from queuecontroller.gpushares.extender.gangs import Event, Gangs
from queuecontroller.gpushares.extender.ledger import PodLedger
from queuecontroller.gpushares.extender.pod_groups import (
    COSCHEDULING_NAME,
    RULES,
    Group,
    GroupKey,
)
from queuecontroller.gpushares.extender.pods import PodPlace
from queuecontroller.scheduler.placement.capacity import NodeCapacity
from queuecontroller.scheduler.placement.stock import Stock
from sluicecommon.pod_annotations import PLACEMENT
from tests.queue.gpushares.extender.rooms import pod

WAITS_S = 12.0


class World:
    def __init__(self, nodes: dict[str, NodeCapacity], **labels: dict[str, str]) -> None:
        self.nodes = nodes
        self.labels = labels
        self.groups: dict[str, Group | str] = {}
        self.pods: dict[str, dict[str, Any]] = {}
        self.refused: dict[str, str] = {}
        """Reasons of quota by pod."""
        self.now_s = 0.0
        self.events: list[Event] = []
        self.waiting: dict[str, float] = {}
        """Bindings that wait for others, with the time until which they do."""
        self.start()

    def start(self) -> None:
        """A new leader: it has what the API server has, and the nodes report."""
        self.stock = Stock()
        self.ledger = PodLedger(self.stock)
        self.waiting.clear()
        self.one = Extender(self.stock, self.ledger, Defaults(), self._queued)
        self.gangs = Gangs(
            self.stock,
            self.ledger,
            Defaults(),
            self.one.read,
            self._group,
            self.one.is_ready,
            lambda node: False,
            lambda node: self.labels.get(node, {}),
            self._refusals,
            lambda: self.now_s,
            self._happened,
        )
        for name in self.pods:
            self._seen(name)
        self.gangs.take_over()
        for name, capacity in self.nodes.items():
            self.stock.report(name, capacity)
            self.gangs.restore()

    def _queued(self, document: Any, names: Any) -> PodPlace | str | None:
        return self.gangs.place(document, names)

    def _group(self, key: GroupKey) -> Group | str | None:
        return self.groups.get(key.name)

    def _refusals(self, document: Any, names: Any) -> dict[str, str]:
        why = self.refused.get(document["metadata"]["name"])
        return dict.fromkeys(names, why) if why else {}

    def _happened(self, event: Event) -> None:
        self.events.append(event)
        for document, node in zip(event.pods, event.nodes or [None] * len(event.pods), strict=True):
            document["status"]["nominatedNodeName"] = node

    # -- the API server ---------------------------------------------------------------------------

    def group(self, name: str, minimum: int, created: str = "", **more: Any) -> None:
        self.groups[name] = Group(minimum, created, **more)

    def create(self, name: str, group: str = "", rules: str = "", **amounts: Any) -> dict[str, Any]:
        document = pod(name, **amounts)
        if group:
            document["metadata"]["labels"] = {COSCHEDULING_NAME: group}
        if rules:
            document["metadata"]["annotations"][RULES] = rules
        self.pods[name] = document
        self._seen(name)
        return document

    def _seen(self, name: str) -> None:
        document = self.pods[name]
        self.ledger.take(document)
        self.gangs.changed(document["metadata"]["uid"], document)

    def delete(self, name: str) -> None:
        uid = self.pods.pop(name)["metadata"]["uid"]
        self.waiting.pop(name, None)
        self.ledger.drop(uid)
        self.gangs.changed(uid, None)

    # -- the scheduler ----------------------------------------------------------------------------

    def filter(self, name: str, *nodes: str) -> tuple[list[str], str]:
        """Nodes that pass, and the reason of one that does not."""
        names = nodes or tuple(self.nodes)
        passed = self.one.filter(self.pods[name], names)
        return list(passed.names), next(
            iter([*passed.failed.values(), *passed.hopeless.values()]), ""
        )

    def why(self, name: str, *nodes: str) -> str:
        passed, why = self.filter(name, *nodes)
        assert not passed, passed
        return why

    def schedule(self, name: str, *nodes: str) -> str:
        """Filter and bind; returns the error, "" if it is bound or waits for the others."""
        document = self.pods[name]
        if document["spec"].get("nodeName") or name in self.waiting:
            return ""
        passed, why = self.filter(name, *nodes)
        if not passed:
            return why
        place = self.one.place(document, passed[0])
        if not isinstance(place, PodPlace):
            return str(place)
        self.ledger.assume(document["metadata"]["uid"], place)
        self.waiting[name] = self.now_s + WAITS_S
        self.settle()
        return ""

    def settle(self) -> None:
        """Let bindings go on that wait no more."""
        for name, until_s in list(self.waiting.items()):
            uid = self.pods[name]["metadata"]["uid"]
            if not self.gangs.why_not_bound(uid):
                self._bind(name)
            elif self.gangs.is_given_back(uid) or self.now_s >= until_s:
                del self.waiting[name]
                self.ledger.forget(uid)
                self.gangs.keep_again(uid)

    def _bind(self, name: str) -> None:
        del self.waiting[name]
        document = self.pods[name]
        place = self.ledger.assumed_place(document["metadata"]["uid"])
        assert place is not None
        document["spec"]["nodeName"] = place.node
        document["metadata"]["annotations"][PLACEMENT] = place.text()
        self._seen(name)

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.gangs.tick()
        self.settle()

    # -- what is so -------------------------------------------------------------------------------

    def bound(self, group: str = "") -> list[str]:
        return sorted(name for name in self.of(group) if self.pods[name]["spec"].get("nodeName"))

    def of(self, group: str = "") -> list[str]:
        return [
            name
            for name, one in self.pods.items()
            if not group or (one["metadata"].get("labels") or {}).get(COSCHEDULING_NAME) == group
        ]

    def nodes_of(self, group: str) -> list[str]:
        return sorted(self.pods[name]["spec"]["nodeName"] for name in self.bound(group))

    def gpus_of(self, group: str) -> list[str]:
        places = [self.ledger.place(f"u-{name}") for name in self.bound(group)]
        return [share.uuid for place in places if place is not None for share in place.held]

    @property
    def reserved(self) -> list[str]:
        return sorted(uid.removeprefix("u-") for uid in self.ledger.kept)

"""Other vendors' devices in a cluster: those registered on each node, the pods that hold parts of
them, and allocations that are chosen but not written yet.

The current nodes and pods go in, decisions come out. A node's cards are recomputed only after
something on it has changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from queuecontroller.gpushares.vendors.asks import Document, PodAsk, annotations_of
from queuecontroller.gpushares.vendors.cards import Card
from queuecontroller.gpushares.vendors.handshake import word
from queuecontroller.gpushares.vendors.placing import Cards, allocation, asks_of, cards_of, fit
from queuecontroller.gpushares.vendors.rules import Vendor, node_annotation
from sluicecommon.hami.devices import BadRegister
from sluicecommon.hami.names import CORDON

OVER: Final = ("Succeeded", "Failed")
INSTANCE_TYPE: Final = "node.kubernetes.io/instance-type"
NONE: Final = "no device of the kind is registered"


@dataclass(slots=True)
class _Node:
    document: Document
    pods: dict[str, Document] = field(default_factory=dict)
    """Pods by UID that hold devices there or are being bound."""
    cards: Cards | None = None
    problems: tuple[str, ...] = ()


@dataclass(slots=True)
class ForeignBook:
    vendors: tuple[Vendor, ...]
    _nodes: dict[str, _Node] = field(default_factory=dict)
    _node_of: dict[str, str] = field(default_factory=dict)
    """Node by pod UID."""
    _waiting: dict[str, dict[str, Document]] = field(default_factory=dict)
    """Pods by UID, by the name of a node that is not known yet."""
    _assumed: dict[str, None] = field(default_factory=dict)

    # -- nodes and pods ---------------------------------------------------------------------------

    def pruned_node(self, document: Document) -> dict[str, Any] | None:
        """The parts of a node that are read here; None if it has none."""
        head, status = document.get("metadata") or {}, document.get("status") or {}
        keys = {one.register for one in self.vendors} | {CORDON}
        keys |= {one.handshake for one in self.vendors}
        keys |= {f"metax-tech.com/gpu.topology.{one}" for one in ("losses", "scores")}
        annotations = {k: v for k, v in annotations_of(document).items() if k in keys}
        counted = {one for row in self.vendors for one in row.resources}
        counted |= {"enflame.com/gcu-count", "enflame.com/shared-gcu"}
        found = status.get("capacity") or {}
        capacity = {k: v for k, v in found.items() if k in counted}
        if not capacity and not annotations.keys() - {CORDON}:
            return None
        found = status.get("allocatable") or {}
        counts = {row.count for row in self.vendors if row.handshake}
        allocatable = {k: v for k, v in found.items() if k in counts}
        labels = {k: v for k, v in (head.get("labels") or {}).items() if k == INSTANCE_TYPE}
        made = {"name": head.get("name"), "annotations": annotations, "labels": labels}
        amounts = {"capacity": capacity, "allocatable": allocatable}
        return {"metadata": made, "status": amounts}

    def node(self, name: str, document: Document | None) -> bool:
        """Store a pruned node; None if it was deleted or has no such devices. True if it may have
        room that it had not before."""
        known = self._nodes.get(name)
        if document is None:
            if known is not None:
                del self._nodes[name]
                self._waiting.setdefault(name, {}).update(known.pods)
            return False
        if known is None:
            self._nodes[name] = _Node(document, self._waiting.pop(name, {}))
            return True
        if known.document == document:
            return False
        before, known.document, known.cards = known.document, document, None
        return self._offered(before) != self._offered(document)

    def _offered(self, node: Document) -> Document:
        """The node without the timestamps of handshakes, which plugins rewrite every 30 seconds."""
        clocks = {one.handshake for one in self.vendors}
        given = annotations_of(node)
        words = {key: text[:7] if key in clocks else text for key, text in given.items()}
        return {**node, "metadata": {**node["metadata"], "annotations": words}}

    def holds(self, pod: Document) -> bool:
        """True if a pod holds any of these devices."""
        given = annotations_of(pod)
        return any(one.allocated in given for one in self.vendors)

    def pod(self, uid: str, pod: Document | None) -> None:
        """Store a pod of the API server; None if it was deleted or holds none of these devices."""
        if pod is not None:
            node = str((pod.get("spec") or {}).get("nodeName") or "")
            over = (pod.get("status") or {}).get("phase") in OVER
            if not over and node and self.holds(pod):
                self._assumed.pop(uid, None)
                self._put(uid, node, pod)
                return
            if not over and uid in self._assumed:
                return  # The pod is being bound.
        self._assumed.pop(uid, None)
        self._take_out(uid)

    def _put(self, uid: str, node: str, pod: Document) -> None:
        self._take_out(uid)
        self._node_of[uid] = node
        known = self._nodes.get(node)
        if known is None:
            self._waiting.setdefault(node, {})[uid] = pod
        else:
            known.pods[uid], known.cards = pod, None

    def _take_out(self, uid: str) -> None:
        node = self._node_of.pop(uid, None)
        if node is None:
            return
        known = self._nodes.get(node)
        if known is None:
            here = self._waiting.get(node, {})
            here.pop(uid, None)
            if not here:
                self._waiting.pop(node, None)
        else:
            known.pods.pop(uid, None)
            known.cards = None

    # -- decisions --------------------------------------------------------------------------------

    def asks(self, pod: Document) -> PodAsk:
        """Parsed requests of a pod. Raises AskError."""
        return asks_of(self.vendors, pod)

    def cards(self, node: str) -> Cards:
        known = self._nodes.get(node)
        if known is None:
            return {}
        if known.cards is None:
            problems: list[str] = []
            known.cards = cards_of(self.vendors, known.document, known.pods.values(), problems)
            known.problems = tuple(problems)
        return known.cards

    def why_not(self, ask: PodAsk, node: str) -> str:
        """Reason why a pod does not fit on a node; empty if it does."""
        found = self._fit(ask, node)
        return found if isinstance(found, str) else ""

    def _fit(self, ask: PodAsk, node: str) -> Any:
        if node not in self._nodes:
            return NONE
        try:
            return fit(self.vendors, self.cards(node), ask)
        except BadRegister as error:
            return str(error)

    def choose(self, pod: Document, node: str, now_ns: int) -> dict[str, str] | str:
        """Annotations for binding a pod to a node, or the reason why it does not fit. Raises
        AskError."""
        found = self._fit(self.asks(pod), node)
        if isinstance(found, str):
            return found
        return allocation(self.vendors, found, pod, node, now_ns)

    # -- handshakes with plugins -------------------------------------------------------------------

    def asked_nodes(self) -> frozenset[str]:
        """Nodes whose plugins may need a handshake."""
        keys = [one.handshake for one in self.vendors if one.handshake]
        return frozenset(
            name
            for name, one in self._nodes.items()
            if any(node_annotation(one.document, key) for key in keys)
            or one.document["status"]["allocatable"]
        )

    def handshakes(self, node: str, now_ns: int) -> dict[str, str]:
        """Handshake annotations to write on a node."""
        known = self._nodes.get(node)
        if known is None:
            return {}
        words = {one.handshake: word(one, known.document, now_ns) for one in self.vendors}
        return {key: text for key, text in words.items() if key and text}

    # -- pods being bound -------------------------------------------------------------------------

    def assume(self, uid: str, node: str, pod: Document, annotations: Mapping[str, str]) -> None:
        head = {**(pod.get("metadata") or {})}
        head["annotations"] = {**annotations_of(pod), **annotations}
        self._assumed[uid] = None
        self._put(uid, node, {**pod, "metadata": head})

    def forget(self, uid: str) -> None:
        """Drop an assumed allocation whose binding failed."""
        if uid in self._assumed:
            del self._assumed[uid]
            self._take_out(uid)

    # -- figures ----------------------------------------------------------------------------------

    def figures(self) -> list[tuple[str, Vendor, Card]]:
        """All registered devices with their node."""
        by_word = {one.word: one for one in self.vendors}
        return [
            (node, by_word[word], card)
            for node in self._nodes
            for word, cards in self.cards(node).items()
            for card in cards
        ]

    def problems(self) -> list[tuple[str, str]]:
        """Node and error text of malformed registers and allocations."""
        return [(name, why) for name, one in self._nodes.items() for why in one.problems]

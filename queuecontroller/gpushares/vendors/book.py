"""What is known of other vendors' devices in a cluster: what each node has registered, which pods
hold what of it, and what has been chosen and not been written yet.

Events in (nodes and pods as they are now), answers out. A node's cards are reckoned anew only
after something on it has changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from queuecontroller.gpushares.vendors.asks import Document, PodAsk, annotations_of
from queuecontroller.gpushares.vendors.devices import BadRegister, Card
from queuecontroller.gpushares.vendors.handshake import word
from queuecontroller.gpushares.vendors.placing import Cards, allocation, asks_of, cards_of, fit
from queuecontroller.gpushares.vendors.rules import CORDON, Vendor, node_annotation

OVER: Final = ("Succeeded", "Failed")
INSTANCE_TYPE: Final = "node.kubernetes.io/instance-type"
NONE: Final = "no device of the kind is registered"


@dataclass(slots=True)
class _Node:
    document: Document
    pods: dict[str, Document] = field(default_factory=dict)
    """By UID: those that hold something there, or are about to."""
    cards: Cards | None = None
    problems: tuple[str, ...] = ()


@dataclass(slots=True)
class ForeignBook:
    vendors: tuple[Vendor, ...]
    _nodes: dict[str, _Node] = field(default_factory=dict)
    _node_of: dict[str, str] = field(default_factory=dict)
    """Of a pod, by UID."""
    _waiting: dict[str, dict[str, Document]] = field(default_factory=dict)
    """Pods of nodes that are not known yet."""
    _assumed: dict[str, None] = field(default_factory=dict)

    # -- what there is ----------------------------------------------------------------------------

    def pruned_node(self, document: Document) -> dict[str, Any] | None:
        """As much of a node as is read here; None: nothing of it is."""
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
        """Pruned, or None: it has none of these devices, or is gone. Whether it may have some now
        that it had not."""
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
        """Without the time in a handshake: a plugin says every half a minute that it is there."""
        clocks = {one.handshake for one in self.vendors}
        given = annotations_of(node)
        words = {key: text[:7] if key in clocks else text for key, text in given.items()}
        return {**node, "metadata": {**node["metadata"], "annotations": words}}

    def holds(self, pod: Document) -> bool:
        """Whether a pod has anything of them."""
        given = annotations_of(pod)
        return any(one.allocated in given for one in self.vendors)

    def pod(self, uid: str, pod: Document | None) -> None:
        """As the API server has it; None: it is gone, or has nothing to do with these devices."""
        if pod is not None:
            node = str((pod.get("spec") or {}).get("nodeName") or "")
            over = (pod.get("status") or {}).get("phase") in OVER
            if not over and node and self.holds(pod):
                self._assumed.pop(uid, None)
                self._put(uid, node, pod)
                return
            if not over and uid in self._assumed:
                return  # its binding is under way
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

    # -- questions --------------------------------------------------------------------------------

    def asks(self, pod: Document) -> PodAsk:
        """Raises AskError."""
        return asks_of(self.vendors, pod)

    def cards(self, node: str) -> Cards:
        known = self._nodes.get(node)
        if known is None:
            return {}
        if known.cards is None:
            told: list[str] = []
            known.cards = cards_of(self.vendors, known.document, known.pods.values(), told)
            known.problems = tuple(told)
        return known.cards

    def why_not(self, ask: PodAsk, node: str) -> str:
        """Empty: there is room."""
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
        """The annotations with which a pod is bound there, or why it cannot be. Raises AskError."""
        found = self._fit(self.asks(pod), node)
        if isinstance(found, str):
            return found
        return allocation(self.vendors, found, pod, node, now_ns)

    # -- whether plugins are there ----------------------------------------------------------------

    def asked_nodes(self) -> frozenset[str]:
        """Nodes of which a plugin may have to be asked whether it is there."""
        keys = [one.handshake for one in self.vendors if one.handshake]
        return frozenset(
            name
            for name, one in self._nodes.items()
            if any(node_annotation(one.document, key) for key in keys)
            or one.document["status"]["allocatable"]
        )

    def handshakes(self, node: str, now_ns: int) -> dict[str, str]:
        """What is to be written there, by annotation."""
        known = self._nodes.get(node)
        if known is None:
            return {}
        said = {one.handshake: word(one, known.document, now_ns) for one in self.vendors}
        return {key: text for key, text in said.items() if key and text}

    # -- what is about to be written --------------------------------------------------------------

    def assume(self, uid: str, node: str, pod: Document, annotations: Mapping[str, str]) -> None:
        head = {**(pod.get("metadata") or {})}
        head["annotations"] = {**annotations_of(pod), **annotations}
        self._assumed[uid] = None
        self._put(uid, node, {**pod, "metadata": head})

    def forget(self, uid: str) -> None:
        """It was not written."""
        if uid in self._assumed:
            del self._assumed[uid]
            self._take_out(uid)

    # -- figures ----------------------------------------------------------------------------------

    def figures(self) -> list[tuple[str, Vendor, Card]]:
        """Every device that is registered, by node."""
        by_word = {one.word: one for one in self.vendors}
        return [
            (node, by_word[word], card)
            for node in self._nodes
            for word, cards in self.cards(node).items()
            for card in cards
        ]

    def problems(self) -> list[tuple[str, str]]:
        """What cannot be read of nodes."""
        return [(name, why) for name, one in self._nodes.items() for why in one.problems]

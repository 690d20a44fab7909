"""Pods about to be bound: the scheduler received a best node for one pod and sends requests for
others before it has bound the first. The scheduler's own sums of advertised resources do not
include single GPUs. Without this, the last room of a node would be offered to several pods; all but
one would be refused at binding and wait for a second or more.

This is a guess, since the scheduler may decide otherwise: it never excludes a pod's only node.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from queuecontroller.gpushares.extender.pods import PodAsk, PodPlace
from queuecontroller.gpushares.extender.verdicts import move, place_on, scratch
from queuecontroller.scheduler.placement.stock import NodeRoom, Share, Stock

LASTS_S: Final = 1.0
"""Seconds. A binding follows within milliseconds; a pod that the scheduler delays for another
reason must not keep room for longer."""


class _OnTheWay(NamedTuple):
    node: str
    shares: tuple[Share, ...]
    until_s: float


class NominatedPods:
    def __init__(self, stock: Stock) -> None:
        self._stock = stock
        self._pods: dict[str, _OnTheWay] = {}
        """Nominated pods by UID, oldest first."""
        self._to: dict[str, set[str]] = {}
        """UIDs by node."""

    def __len__(self) -> int:
        return len(self._pods)

    def sent(self, ask: PodAsk, node: str, now_s: float) -> None:
        """Record that the scheduler received this node as the pod's best."""
        self.arrived(ask.uid)
        room = self._stock.nodes.get(node)
        if room is None or not ask.containers:
            return
        place = place_on(self._as_if_arrived(room), ask.containers)
        if isinstance(place, PodPlace):
            self._pods[ask.uid] = _OnTheWay(node, place.held, now_s + LASTS_S)
            self._to.setdefault(node, set()).add(ask.uid)

    def arrived(self, uid: str) -> None:
        """Remove a pod that is being bound, is requested again, or is gone."""
        one = self._pods.pop(uid, None)
        if one is None:
            return
        others = self._to[one.node]
        others.discard(uid)
        if not others:
            del self._to[one.node]

    def apart(self, ask: PodAsk, names: Sequence[str], now_s: float) -> tuple[str, ...]:
        """Nodes with room for the pod even if all nominated pods are bound; all of `names` if there
        are none."""
        self.arrived(ask.uid)
        while self._pods and (first := next(iter(self._pods.items())))[1].until_s <= now_s:
            self.arrived(first[0])
        if not self._pods or len(names) < 2:
            return tuple(names)
        apart = tuple(one for one in names if one not in self._to or self._has_room(one, ask))
        return apart or tuple(names)

    def _has_room(self, node: str, ask: PodAsk) -> bool:
        room = self._stock.nodes.get(node)
        return room is None or isinstance(
            place_on(self._as_if_arrived(room), ask.containers), PodPlace
        )

    def _as_if_arrived(self, room: NodeRoom) -> NodeRoom:
        there = self._to.get(room.name)
        if not there:
            return room
        trial = scratch(room)
        for uid in there:
            move(trial, self._pods[uid].shares, 1)
        return trial


__all__ = ["NominatedPods"]

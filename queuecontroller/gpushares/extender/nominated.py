"""Pods on their way: a scheduler was told which node suits a pod best, and asks about others before
it has bound that one there. It goes by its own sums of what nodes advertise, which say nothing of
single GPUs: without this the last room of a node is promised to several, all but one are refused
when they are bound, and each waits for a second or more.

A guess, since the scheduler has a say of its own: it never keeps a pod from its only node.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from queuecontroller.gpushares.extender.pods import PodAsk, PodPlace
from queuecontroller.gpushares.extender.verdicts import move, place_on, scratch
from queuecontroller.scheduler.placement.stock import NodeRoom, Share, Stock

LASTS_S: Final = 1.0
"""A binding comes within milliseconds; a pod that the scheduler holds back for a reason of its own
is not to keep room for longer."""


class _OnTheWay(NamedTuple):
    node: str
    shares: tuple[Share, ...]
    until_s: float


class NominatedPods:
    def __init__(self, stock: Stock) -> None:
        self._stock = stock
        self._pods: dict[str, _OnTheWay] = {}
        """By UID, in the order in which they were sent."""
        self._to: dict[str, set[str]] = {}
        """By node."""

    def __len__(self) -> int:
        return len(self._pods)

    def sent(self, ask: PodAsk, node: str, now_s: float) -> None:
        """Its scheduler has heard that this node suits it best."""
        self.arrived(ask.uid)
        room = self._stock.nodes.get(node)
        if room is None or not ask.containers:
            return
        place = place_on(self._as_if_arrived(room), ask.containers)
        if isinstance(place, PodPlace):
            self._pods[ask.uid] = _OnTheWay(node, place.held, now_s + LASTS_S)
            self._to.setdefault(node, set()).add(ask.uid)

    def arrived(self, uid: str) -> None:
        """It is being bound, asked about anew, or gone."""
        one = self._pods.pop(uid, None)
        if one is None:
            return
        others = self._to[one.node]
        others.discard(uid)
        if not others:
            del self._to[one.node]

    def apart(self, ask: PodAsk, names: Sequence[str], now_s: float) -> tuple[str, ...]:
        """Those nodes where there is room for the pod even when the others have arrived; all of
        them, where that would be none."""
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

"""Nodes of a simulation: their changes in a trace, and the use of their GPUs over time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from queuecontroller.cli.simulate.trace import (
    LONGEST_S,
    NS_PER_S,
    TraceError,
    object_of,
    seconds_of,
    text_of,
)
from queuecontroller.kueueapi.manifests.nodes import read_report
from queuecontroller.scheduler.placement.capacity import NodeCapacity
from queuecontroller.scheduler.placement.fragmentation import Fragmentation, Gauge
from queuecontroller.scheduler.placement.stock import Stock
from sluicecommon.reader import ManifestError

MAX_POINTS: Final = 200
"""Points of a timeline; with more, every other one is dropped."""


@dataclass(frozen=True, slots=True)
class NodeNews:
    """A node that is added or changes; a capacity of None removes it."""

    at_ns: int
    name: str
    capacity: NodeCapacity | None


def split_trace(text: str) -> tuple[str, list[NodeNews]]:
    """The lines about nodes, by time, and the text with these lines emptied. Raises TraceError."""
    rest, found = [], []
    for number, line in enumerate(text.split("\n"), 1):
        news = None
        if '"node"' in line and not line.lstrip().startswith("#"):
            given = object_of(line, number)
            news = _news(given, number) if "node" in given else None
        rest.append(line if news is None else "")
        if news is not None:
            found.append(news)
    return "\n".join(rest), sorted(found, key=lambda one: one.at_ns)


def _news(given: Mapping[str, Any], number: int) -> NodeNews:
    at_ns = seconds_of(given, number, "at_s", 0, LONGEST_S)
    name = text_of(given, number, "node")
    left = {key: value for key, value in given.items() if key not in ("at_s", "node")}
    gone = left.pop("gone", False)
    if not isinstance(gone, bool):
        raise TraceError(f"line {number}: gone: must be true or false")
    if gone:
        if left:
            raise TraceError(
                f"line {number}: {min(left)[:64]!r}: a node with gone takes no other field"
            )
        return NodeNews(at_ns, name, None)
    if "gpus" not in left:
        raise TraceError(f'line {number}: gpus is missing, such as [{{"memory": "80Gi"}}]')
    try:
        return NodeNews(at_ns, name, read_report(left, name))
    except ManifestError as error:
        raise TraceError(f"line {number}: {error}") from None


@dataclass(slots=True)
class Timeline:
    """Free GPU memory and its fragmentation, over time."""

    _gauge: Gauge = field(default_factory=Gauge)
    _points: list[dict[str, Any]] = field(default_factory=list)
    _every: int = 1
    _seen: int = 0
    _now: dict[str, Fragmentation] = field(default_factory=dict)
    _changes: int = -1
    _area: dict[str, int] = field(default_factory=dict)
    _worst: dict[str, int] = field(default_factory=dict)
    _used_area: int = 0
    _total_area: int = 0
    _total_bytes: int = 0
    _free_bytes: int = 0

    def pass_time(self, passed_ns: int) -> None:
        """Add the current values to the averages, weighted with the time passed."""
        for name, found in self._now.items():
            self._area[name] = self._area.get(name, 0) + found.ppm * passed_ns
            if passed_ns:
                self._worst[name] = max(self._worst.get(name, 0), found.ppm)
        self._used_area += (self._total_bytes - self._free_bytes) * passed_ns
        self._total_area += self._total_bytes * passed_ns

    def look(self, stock: Stock, now_ns: int, running: int, pending: int) -> None:
        if stock.changes == self._changes:
            return
        self._changes = stock.changes
        self._now = self._gauge.measure(stock)
        gpus = [gpu for room in stock.nodes.values() for gpu in room.gpus.values()]
        self._total_bytes = sum(gpu.gpu.memory_bytes for gpu in gpus)
        self._free_bytes = sum(max(0, gpu.memory_bytes) for gpu in gpus)
        self._seen += 1
        if (self._seen - 1) % self._every:
            return
        self._points.append(
            {
                "at_s": now_ns / NS_PER_S,
                "nodes": len(stock.nodes),
                "running": running,
                "pending": pending,
                "free_memory_mib": self._free_bytes >> 20,
                "fragmentation": {n: round(one.ppm / 1e6, 4) for n, one in self._now.items()},
            }
        )
        if len(self._points) > MAX_POINTS:
            self._points = self._points[::2]
            self._every *= 2

    def report(self, lasted_ns: int) -> dict[str, Any]:
        return {
            "memory_used_ratio": round(self._used_area / self._total_area, 4)
            if self._total_area
            else 0.0,
            "fragmentation": {
                name: {
                    "end": round(found.ppm / 1e6, 4),
                    "mean": round(self._area.get(name, 0) / lasted_ns / 1e6, 4) if lasted_ns else 0,
                    "worst": round(self._worst.get(name, 0) / 1e6, 4),
                    "fits": found.fits,
                }
                for name, found in self._now.items()
            },
            "timeline": self._points,
        }

"""The last hour of samples for a page's sparklines: ring buffers with one slot each STEP_S.

A ratio is stored in thousandths, in two bytes: 8,000 GPUs with three series take 6 MB. Pure; the
time is passed in.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Mapping
from typing import Any, Final

STEP_S: Final = 30
SLOTS: Final = 120
"""Slots of an hour."""
UNKNOWN: Final = 0xFFFF
MAX_SERIES: Final = 50_000


class Ring:
    """Ring buffer of the averages of the samples within each slot."""

    __slots__ = ("_at", "_count", "_sum", "values")

    def __init__(self) -> None:
        self.values = array("H", [UNKNOWN]) * SLOTS
        self._at = -1
        self._sum = 0.0
        self._count = 0

    def add(self, slot: int, ratio: float) -> None:
        if slot < self._at:
            return
        if slot != self._at:
            for missed in range(max(self._at + 1, slot - SLOTS), slot):
                self.values[missed % SLOTS] = UNKNOWN
            self._at, self._sum, self._count = slot, 0.0, 0
        self._sum += min(60.0, max(0.0, ratio))
        self._count += 1
        self.values[slot % SLOTS] = round(self._sum / self._count * 1000)

    def read(self, slot: int) -> list[float | None]:
        """The last hour up to `slot`, oldest first."""
        found: list[float | None] = []
        for at in range(slot - SLOTS + 1, slot + 1):
            is_kept = self._at - SLOTS < at <= self._at
            value = self.values[at % SLOTS] if is_kept else UNKNOWN
            found.append(None if value == UNKNOWN else value / 1000)
        return found


class History:
    def __init__(self) -> None:
        self._rings: dict[str, dict[str, Ring]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, name: str, figures: Mapping[str, float | None], now_s: float) -> None:
        """Add samples of `name`; a ratio of None is unknown."""
        slot = int(now_s // STEP_S)
        rings = self._rings.setdefault(name, {})
        for figure, ratio in figures.items():
            if ratio is None:
                continue
            ring = rings.get(figure)
            if ring is None:
                if self._count >= MAX_SERIES:
                    continue
                ring = rings[figure] = Ring()
                self._count += 1
            ring.add(slot, ratio)

    def read(self, name: str, now_s: float) -> dict[str, Any]:
        """The series of `name`; `end` is the end of the last slot in Unix seconds."""
        slot = int(now_s // STEP_S)
        series = {figure: ring.read(slot) for figure, ring in self._rings.get(name, {}).items()}
        return {"step": STEP_S, "end": (slot + 1) * STEP_S, "series": series}

    def keep(self, names: Collection[str]) -> None:
        """Drop the series of all other names."""
        for name in self._rings.keys() - set(names):
            self._count -= len(self._rings.pop(name))

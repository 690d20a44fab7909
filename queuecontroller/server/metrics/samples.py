"""Samples of the controller's metrics, with label values of a restricted alphabet."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from queuecontroller.server.metrics import catalogue as m
from queuecontroller.state.figures import Histogram
from sluicecommon.prometheus import Exposition

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_.:/@% -]")


class Samples:
    """The samples of one scrape, in the order of the catalogue."""

    def __init__(self) -> None:
        self._exposition = Exposition(m.CATALOGUE)

    def add(self, metric: m.Metric, labels: Sequence[str], value: float | None) -> None:
        """Add one sample; a value of None adds none."""
        self._exposition.add(metric, _safe(labels), value)

    def histogram(self, metric: m.Metric, labels: Sequence[str], found: Histogram) -> None:
        self._exposition.add_histogram(metric, _safe(labels), found)

    def text(self) -> bytes:
        return self._exposition.text()


def _safe(labels: Sequence[str]) -> list[str]:
    return [_UNSAFE.sub("_", one) for one in labels]

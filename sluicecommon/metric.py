"""The declaration of a metric in a catalogue."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    """Without `_total`, which the exposition adds to counters."""
    kind: Kind
    labels: tuple[str, ...]
    help: str
    exact: bool = False
    """True for a counter whose name gets no `_total`, since another exporter has it without."""

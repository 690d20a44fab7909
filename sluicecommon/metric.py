"""What a catalogue of metrics declares of each."""

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
    """Without `_total`: the exposition format adds it to counters."""
    kind: Kind
    labels: tuple[str, ...]
    help: str
    exact: bool = False
    """A counter of somebody else's: its name stays as it is."""

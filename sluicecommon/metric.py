"""Declaration of a metric in a catalogue."""

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
    """True if the name is another project's and gets no `_total`."""

"""Samples by metric, in the order of the catalogue."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.core import (
    Metric as Family,
)

from queuecontroller.server.metrics import catalogue as m
from queuecontroller.state.figures import Histogram

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_.:/@% -]")
_FAMILIES: Final[dict[m.Kind, Any]] = {
    m.Kind.GAUGE: GaugeMetricFamily,
    m.Kind.COUNTER: CounterMetricFamily,
    m.Kind.HISTOGRAM: HistogramMetricFamily,
}


class Samples:
    def __init__(self) -> None:
        self._families = {
            one: _FAMILIES[one.kind](one.name, one.help, labels=one.labels) for one in m.CATALOGUE
        }

    def add(self, metric: m.Metric, labels: Sequence[str], value: float | None) -> None:
        if value is not None:
            self._families[metric].add_metric(_safe(labels), value)

    def histogram(self, metric: m.Metric, labels: Sequence[str], found: Histogram) -> None:
        buckets = found.buckets()
        self._families[metric].add_metric(_safe(labels), buckets, sum_value=found.total)

    def families(self) -> Iterable[Family]:
        return self._families.values()


def _safe(labels: Sequence[str]) -> list[str]:
    return [_UNSAFE.sub("_", one)[:128] for one in labels]

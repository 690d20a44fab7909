"""Declarations of metrics for a catalogue, with the functions that read their values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")
Figure = float | None | Mapping[Any, float | None]
"""One value, None if it is not known; or values by the values of further labels."""


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


class Samples(Protocol):
    """Receiver of samples."""

    def add(self, metric: Metric, labels: tuple[str, ...], value: float | None) -> None: ...


class Source(Generic[T]):
    """Metrics of one kind of object, each with the function that reads its value."""

    def __init__(self, *labels: str) -> None:
        """`labels` are the labels that identify a series' object."""
        self._labels = labels
        self._reads: list[tuple[Metric, Callable[[T], Figure]]] = []

    def gauge(self, name: str, help_: str, read: Callable[[T], Figure], *more: str) -> Metric:
        """Declare a metric; `more` are labels besides those of the object."""
        return self._declare(Kind.GAUGE, name, help_, read, more)

    def counter(self, name: str, help_: str, read: Callable[[T], Figure], *more: str) -> Metric:
        return self._declare(Kind.COUNTER, name, help_, read, more)

    def _declare(
        self, kind: Kind, name: str, help_: str, read: Callable[[T], Figure], more: tuple[str, ...]
    ) -> Metric:
        metric = Metric(name, kind, (*self._labels, *more), help_)
        self._reads.append((metric, read))
        return metric

    @property
    def metrics(self) -> list[Metric]:
        return [metric for metric, _ in self._reads]

    def fill(self, samples: Samples, of: T, labels: tuple[str, ...]) -> None:
        """Add the samples of an object; `labels` are the values of the source's own labels."""
        add = samples.add
        for metric, read in self._reads:
            figure = read(of)
            # A node has thousands of series, and isinstance(…, Mapping) takes as long as a sample.
            if len(metric.labels) == len(labels):
                add(metric, labels, figure)  # type: ignore[arg-type]
            else:
                for more, one in figure.items():  # type: ignore[union-attr]
                    add(metric, (*labels, *(more if isinstance(more, tuple) else (more,))), one)

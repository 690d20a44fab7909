"""Prometheus' exposition text, in both of its formats.

We write it ourselves because no library lets a counter keep a name without `_total`, and
dcgm-exporter's have none: prometheus_client adds it, or writes a TYPE line that does not fit its
sample. In OpenMetrics, where a counter must end in `_total`, such a family is of type `unknown`.

A page never has a series twice, never more series than allowed, and counts those that it dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

from nodeagent.core.metrics.histogram import Histogram
from sluicecommon.metric import Kind, Metric

TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
LONGEST_LABEL: Final = 128
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_HELP_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n"})


def wants_openmetrics(accept: str) -> bool:
    """True if the Accept header names OpenMetrics with a quality above 0; all other clients get
    text."""
    for one in accept.split(","):
        kind, *parameters = [part.strip() for part in one.split(";")]
        if kind != "application/openmetrics-text":
            continue
        given = dict(part.partition("=")[::2] for part in parameters)
        try:
            return float(given.get("q", "1")) > 0
        except ValueError:
            return False
    return False


class Page:
    """The samples of one scrape, in the order in which the metrics were first declared."""

    def __init__(self, catalogue: Iterable[Metric] = (), max_series: int = 1 << 62) -> None:
        self._lines: dict[str, list[tuple[str, str, float]]] = {m.name: [] for m in catalogue}
        self._metrics: dict[str, Metric] = {m.name: m for m in catalogue}
        self._series: set[str] = set()
        self._left = max_series
        self.dropped: Counter[str] = Counter()
        """Number of dropped series by reason: cap, duplicate."""

    def add(self, metric: Metric, labels: Sequence[str], value: float | None) -> None:
        """Add a sample; None means "not reported" and adds nothing."""
        if value is not None:
            self._add(metric, "", _label_text(metric.labels, tuple(labels)), value)

    def add_histogram(self, metric: Metric, labels: Sequence[str], found: Histogram) -> None:
        body = _label_text(metric.labels, tuple(labels))
        comma = "," if body else ""
        for bound, count in found.buckets():
            self._add(metric, "_bucket", f'{body}{comma}le="{bound}"', count)
        self._add(metric, "_sum", body, found.total)
        self._add(metric, "_count", body, found.count)

    def _add(self, metric: Metric, suffix: str, labels: str, value: float) -> None:
        series = f"{metric.name}{suffix}{{{labels}"
        if series in self._series:
            self.dropped["duplicate"] += 1
            return
        if self._left <= 0:
            self.dropped["cap"] += 1
            return
        self._left -= 1
        self._series.add(series)
        if metric.name not in self._lines:
            self._lines[metric.name] = []
            self._metrics[metric.name] = metric
        self._lines[metric.name].append((suffix, labels, value))

    def text(self, openmetrics: bool = False) -> bytes:
        """The page in UTF-8. A family without samples still has its HELP and TYPE, so that a query
        builder knows it."""
        out = []
        for name, samples in self._lines.items():
            metric = self._metrics[name]
            kind, family, suffix = _kind(metric, openmetrics)
            help_ = metric.help.translate(_ESCAPES if openmetrics else _HELP_ESCAPES)
            out.append(f"# HELP {family} {help_}\n# TYPE {family} {kind}\n")
            for own, labels, value in samples:
                braced = f"{{{labels}}}" if labels else ""
                out.append(f"{name}{own or suffix}{braced} {_number(value)}\n")
        if openmetrics:
            out.append("# EOF\n")
        return "".join(out).encode()


def _kind(metric: Metric, openmetrics: bool) -> tuple[str, str, str]:
    """(TYPE, family name in the comments, suffix of a sample's name)."""
    if metric.kind is not Kind.COUNTER:
        return metric.kind.value, metric.name, ""
    if metric.exact:
        return ("unknown" if openmetrics else "counter"), metric.name, ""
    return "counter", metric.name if openmetrics else f"{metric.name}_total", "_total"


# A grant's labels are the same for each of its metrics, at every scrape.
@lru_cache(maxsize=16_384)
def _label_text(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    return ",".join(f'{name}="{clean(value)}"' for name, value in zip(names, values, strict=True))


def clean(value: str) -> str:
    """Escape a label value so that it cannot break the format, the terminal, or the database behind
    it."""
    if not value.isprintable() or not value.isascii():
        value = "".join(c if c.isprintable() and c.isascii() else "_" for c in value)
    return value[:LONGEST_LABEL].translate(_ESCAPES)


def _number(value: float) -> str:
    return repr(value) if isinstance(value, int) else repr(float(value)).removesuffix(".0")

"""Writer of the text that Prometheus scrapes, in the text format and in OpenMetrics.

Both services use it instead of prometheus_client, which takes four times as long for a node with
thousands of series and knows no counter without the suffix `_total`, as dcgm-exporter's are
(docs/decisions/node/0041-prometheus-client.md). OpenMetrics allows no such counter either; there
the type of these is `unknown`.

No series occurs twice, the number of series may be bounded, and what is left out is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final, Protocol

from sluicecommon.metric import Kind, Metric

TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
LONGEST_LABEL: Final = 128
"""Characters of a label value; a longer value is truncated."""
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_HELP_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n"})


class Buckets(Protocol):
    """A histogram."""

    @property
    def total(self) -> float:
        """Sum of the observed values."""

    def buckets(self) -> Sequence[tuple[str, float]]:
        """Upper bound as a label, and the number of observations up to it; the last is `+Inf`."""


def wants_openmetrics(accept: str) -> bool:
    """True if an Accept header lists OpenMetrics with a quality above 0."""
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


class Exposition:
    """The samples of one scrape, in the order in which their metrics were declared."""

    def __init__(self, catalogue: Iterable[Metric] = (), max_series: int = 1 << 62) -> None:
        # Kueue has a gauge and a counter of one name; dcgm-exporter's labels differ by sample.
        self._families: dict[tuple[str, Kind], _Family] = {
            (metric.name, metric.kind): (metric, []) for metric in catalogue
        }
        self._series: set[str] = set()
        self._room = max_series
        self.dropped: Counter[str] = Counter()
        """Number of samples left out, by reason: `cap` or `duplicate`."""

    def add(self, metric: Metric, labels: Sequence[str], value: float | None) -> None:
        """Add one sample; a value of None adds none."""
        if value is not None:
            suffix = "_total" if metric.kind is Kind.COUNTER and not metric.exact else ""
            self._add(metric, suffix, _label_text(metric.labels, tuple(labels)), value)

    def add_histogram(self, metric: Metric, labels: Sequence[str], found: Buckets) -> None:
        body = _label_text(metric.labels, tuple(labels))
        comma = "," if body else ""
        count = 0.0
        for bound, count in found.buckets():
            self._add(metric, "_bucket", f'{body}{comma}le="{bound}"', count)
        self._add(metric, "_sum", body, found.total)
        self._add(metric, "_count", body, count)

    def _add(self, metric: Metric, suffix: str, labels: str, value: float) -> None:
        series = f"{metric.name}{suffix}{{{labels}}}" if labels else metric.name + suffix
        if series in self._series:
            self.dropped["duplicate"] += 1
            return
        if self._room <= 0:
            self.dropped["cap"] += 1
            return
        self._room -= 1
        self._series.add(series)
        key = metric.name, metric.kind
        family = self._families.get(key)
        if family is None:
            family = self._families[key] = metric, []
        family[1].append(f"{series} {_number(value)}\n")

    def text(self, openmetrics: bool = False) -> bytes:
        """The exposition as UTF-8.

        A family without samples has its HELP and TYPE lines too, so that a query builder offers
        its name.
        """
        out = []
        for metric, samples in self._families.values():
            kind, name = _declared(metric, openmetrics)
            help_ = metric.help.translate(_ESCAPES if openmetrics else _HELP_ESCAPES)
            out.append(f"# HELP {name} {help_}\n# TYPE {name} {kind}\n")
            out += samples
        if openmetrics:
            out.append("# EOF\n")
        return "".join(out).encode()


_Family = tuple[Metric, list[str]]
"""A metric and the lines of its samples."""


def _declared(metric: Metric, openmetrics: bool) -> tuple[str, str]:
    """The type and the name in the comments of a metric's family."""
    if metric.kind is not Kind.COUNTER:
        return metric.kind.value, metric.name
    if metric.exact:
        return ("unknown" if openmetrics else "counter"), metric.name
    return "counter", metric.name if openmetrics else f"{metric.name}_total"


@lru_cache(maxsize=16_384)  # The labels of a grant recur in each of its metrics, at every scrape.
def _label_text(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    return ",".join(f'{name}="{clean(value)}"' for name, value in zip(names, values, strict=True))


def clean(value: str) -> str:
    """A label value that is safe in the format, on a terminal and in the database behind it."""
    if not value.isprintable() or not value.isascii():
        value = "".join(c if c.isprintable() and c.isascii() else "_" for c in value)
    return value[:LONGEST_LABEL].translate(_ESCAPES)


def _number(value: float) -> str:
    return repr(value) if isinstance(value, int) else repr(float(value)).removesuffix(".0")

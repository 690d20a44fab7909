"""Benchmark entries: one per figure, the same shape for all of them."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Entry:
    """`value` is ours, `baseline` what it is compared with (without us, or the wanted figure), both in `unit`;
    `ratio` is value over baseline where that means something. p50 and p95 are of our samples."""

    name: str
    unit: str
    value: float
    baseline: float | None
    ratio: float | None
    n: int
    p50: float
    p95: float
    target: str = ""


def quantile(samples: Sequence[float], part: float) -> float:
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def entry(
    name: str,
    unit: str,
    samples: Sequence[float],
    *,
    value: float | None = None,
    baseline: float | None = None,
    ratio: float | None = None,
    target: str = "",
) -> Entry:
    value = statistics.median(samples) if value is None else value
    return Entry(
        name,
        unit,
        round(value, 4),
        None if baseline is None else round(baseline, 4),
        None if ratio is None else round(ratio, 4),
        len(samples),
        round(statistics.median(samples), 4),
        round(quantile(samples, 0.95), 4),
        target,
    )


def table(entries: Sequence[Entry]) -> str:
    lines = [
        f"{'figure':<34}{'value':>12} {'unit':<8}{'baseline':>12}{'p50':>10}{'p95':>10}{'n':>7}  target"
    ]
    for e in entries:
        baseline = "" if e.baseline is None else f"{e.baseline:.2f}"
        lines.append(
            f"{e.name:<34}{e.value:>12.3f} {e.unit:<8}{baseline:>12}{e.p50:>10.2f}{e.p95:>10.2f}{e.n:>7}  {e.target}"
        )
    return "\n".join(lines)


def write(path: Path, entries: Sequence[Entry]) -> None:
    path.write_text(json.dumps([asdict(e) for e in entries], indent=1) + "\n")

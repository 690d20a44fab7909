"""Growth of a figure: the check of a soak while it runs, and its verdict at the end.

A leak is a line; noise is not. Of each figure the first fifth is left out (starting), the rest is cut in eight parts, and
the median of each is taken: a figure grows when the straight line through them (Theil and Sen: the median of all slopes
between two of them, which a few odd values do not bend) gains more than is allowed over the whole run.
"""

from __future__ import annotations

import os
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import psutil

PARTS = 8
FEWEST = 40
"""Samples; of fewer nothing is said."""


@dataclass(frozen=True)
class Allowed:
    """Growth over the whole run: a part of what it was, and an amount beside it."""

    part: float
    amount: float


RULES: Mapping[str, Allowed] = {
    "resident_bytes": Allowed(0.05, 4 << 20),
    "descriptors": Allowed(0.0, 4),
    "threads": Allowed(0.0, 2),
    "disk_bytes": Allowed(0.10, 8 << 20),
    "mounts": Allowed(0.0, 1),
    "latency_s": Allowed(0.5, 0.05),
}
"""Allowed growth by the last word of a figure's name. The disk keeps 1,000 ended grants, and a
write-ahead log that grows to 4 MiB before it is written back: in a short run it grows by that."""


@dataclass(frozen=True)
class Slope:
    name: str
    first: float
    gain: float
    """Over the whole run, by the line."""
    allowed: float

    @property
    def flat(self) -> bool:
        return self.gain <= self.allowed

    def __str__(self) -> str:
        word = "flat" if self.flat else "GROWS"
        return f"{self.name}: {word}, {self.first:,.4g} {self.gain:+,.4g} (allowed {self.allowed:,.4g})"


def slope(name: str, samples: Sequence[float]) -> Slope | None:
    """None: too few to say."""
    if len(samples) < FEWEST:
        return None
    rest = samples[len(samples) // 5 :]
    size = len(rest) / PARTS
    medians = [statistics.median(rest[int(i * size) : int((i + 1) * size)]) for i in range(PARTS)]
    rise = statistics.median(
        (b - a) / (j - i) for (i, a), (j, b) in combinations(enumerate(medians), 2)
    )
    rule = RULES[name.rpartition(" ")[2]]
    return Slope(name, medians[0], rise * (PARTS - 1), abs(medians[0]) * rule.part + rule.amount)


class Watch:
    """The figures of a daemon, its children and its directory, one sample at a time."""

    def __init__(self, directory: Path, name: str = "daemon") -> None:
        self.directory, self.name = directory, name
        self.samples: dict[str, list[float]] = defaultdict(list)

    def sample(self, pid: int, latency_s: float) -> None:
        process = psutil.Process(pid)
        family = [process, *process.children(recursive=True)]
        figures: Mapping[str, Callable[[psutil.Process], int]] = {
            "resident_bytes": lambda one: int(one.memory_info().rss),
            "descriptors": lambda one: one.num_fds(),
            "threads": lambda one: one.num_threads(),
        }
        for figure, of in figures.items():
            self.samples[f"{self.name} {figure}"].append(sum(of(one) for one in family))
        self.samples[f"{self.name} disk_bytes"].append(used(self.directory))
        self.samples[f"{self.name} mounts"].append(mounts(self.directory))
        self.samples[f"{self.name} latency_s"].append(latency_s)

    def slopes(self) -> list[Slope]:
        found = (slope(name, samples) for name, samples in sorted(self.samples.items()))
        return [one for one in found if one is not None]


def used(directory: Path) -> int:
    total = 0
    for where, _below, files in os.walk(directory):
        for file in files:
            try:
                total += os.lstat(os.path.join(where, file)).st_blocks * 512
            except OSError:  # gone meanwhile
                continue
    return total


def mounts(directory: Path) -> int:
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return sum(line.split()[1].startswith(f"{directory}/") for line in lines)

"""Shares of jobs on the cluster's node, by what they report."""

from __future__ import annotations

from collections.abc import Iterable

from tests.cluster.figures import Figures
from tests.cluster.lab import Lab
from tests.kit.node import until

MARGIN = 0.03
"""A share within it ends the measurement."""
ABOVE = 0.05
"""No try may be further above what was asked for."""
BELOW, PART_BELOW = 0.4, 0.7
"""The best try is at least this part of what was asked for; and, of what all these jobs got together, a job's part at least this
part of the one that it should have. On a busy machine jobs that lack a processor use less of their GPU than they may, both alike.
How exact shares are is measured on a node without Kubernetes."""
TRIES = 5
MEASURED_S = 6.0


def shares(lab: Lab, names: Iterable[str], seconds: float = MEASURED_S) -> dict[str, float]:
    """Shares of GPUs that these pods have from now on, by their own clocks, over that many seconds."""
    begins_ns = {
        name: until(f"{name} reports", lambda name=name: lab.reports(name), 60)[-1]["at_ns"]
        for name in names
    }

    def share(name: str, begin_ns: float) -> float | None:
        found = [one for one in lab.reports(name) if one["at_ns"] > begin_ns]
        if not found or found[-1]["at_ns"] - begin_ns < seconds * 1e9:
            return None
        return sum(one["share_ratio"] for one in found) / len(found)

    return {
        name: until(f"{name} has run {seconds:g} s", lambda name=name, at=at: share(name, at), 60)
        for name, at in begins_ns.items()
    }


def measure(lab: Lab, wanted: dict[str, float], figures: Figures) -> None:
    """Measures until each share is within the margin, a few times at most: the jobs' clock is real, and so is the machine's other
    work. The cap must hold in each try."""
    tries: list[dict[str, float]] = []
    for _ in range(TRIES):
        tries.append(shares(lab, wanted))
        if all(abs(tries[-1][name] - ratio) <= MARGIN for name, ratio in wanted.items()):
            break
    figures.shares += [
        {"want_ratio": ratio, "got_ratio": round(tries[-1][name], 4)}
        for name, ratio in wanted.items()
    ]
    for name, ratio in wanted.items():
        got = [one[name] for one in tries]
        assert max(got) <= ratio + ABOVE, (name, tries)
        assert max(got) >= ratio * BELOW, (name, tries)
        parts = [one[name] / (sum(one.values()) or 1) for one in tries]
        assert max(parts) >= ratio / sum(wanted.values()) * PART_BELOW, (name, tries)

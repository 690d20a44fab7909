"""Shares of jobs on the cluster's node, by what they report."""

from __future__ import annotations

import pytest

from tests.cluster.figures import Figures
from tests.cluster.lab import Lab
from tests.kit.node import until

MARGIN = 0.03
MEASURED_S = 6.0


def share(lab: Lab, name: str, seconds: float = MEASURED_S) -> float:
    """Measure the pod's share of its GPU from now on, by its own clock, over that many seconds."""
    begin_ns = until(f"{name} reports", lambda: lab.reports(name), 60)[-1]["at_ns"]

    def enough() -> list[dict[str, float]] | None:
        found = [one for one in lab.reports(name) if one["at_ns"] > begin_ns]
        return found if found and found[-1]["at_ns"] - begin_ns >= seconds * 1e9 else None

    reports = until(f"{name} has run {seconds:g} s", enough, 60)
    return sum(one["share_ratio"] for one in reports) / len(reports)


def measure(lab: Lab, wanted: dict[str, float], figures: Figures) -> None:
    """Each share within the margin in one of five tries: the job's clock is real, and so is the machine's other work."""
    for name in wanted:
        until(f"{name} reports", lambda name=name: lab.reports(name), 60)
    for _ in range(5):
        got = {name: share(lab, name) for name in wanted}
        if all(abs(got[name] - ratio) <= MARGIN for name, ratio in wanted.items()):
            break
    figures.shares += [
        {"want_ratio": ratio, "got_ratio": round(got[name], 4)} for name, ratio in wanted.items()
    ]
    assert got == pytest.approx(wanted, abs=MARGIN), str(got)

"""Figures measured by the run, for build/cluster.json: filled in by the tests, written at the end,
also of a run that failed."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from tests.kit.places import BUILD

PATH = BUILD / "cluster.json"


class Figures:
    def __init__(self) -> None:
        self.shares: list[dict[str, float]] = []
        self.pod_to_grant_s: list[float] = []
        self.agent_part_ms: list[float] = []
        self.devices_back_s: list[float] = []
        self.lost: list[str] = []
        self.double: list[str] = []
        self.versions: list[str] = []
        self.more: dict[str, Any] = {}

    def write(self, path: Path = PATH) -> None:
        path.parent.mkdir(exist_ok=True)
        new = path.with_suffix(".new")
        new.write_text(json.dumps(self.document(), indent=1) + "\n")
        os.replace(new, path)

    def document(self) -> dict[str, Any]:
        """A key whose test did not run is null: not measured, and not 0."""
        return {
            "shares": self.shares,
            "pod_to_grant_p50_s": percentile(self.pod_to_grant_s, 50),
            "pod_to_grant_p99_s": percentile(self.pod_to_grant_s, 99),
            "pod_to_grant_samples": len(self.pod_to_grant_s),
            "agent_part_p50_ms": percentile(self.agent_part_ms, 50),
            "allocations_lost": len(self.lost),
            "double_grants": len(self.double),
            "devices_back_p99_s": percentile(self.devices_back_s, 99),
            "devices_back_samples": len(self.devices_back_s),
            "kubernetes_versions": list(dict.fromkeys(self.versions)),
            **self.more,
        }


def percentile(values: list[float], percent: float) -> float | None:
    """The smallest value that so many percent do not exceed; with few values the 99th is the largest."""
    if not values:
        return None
    ordered = sorted(values)
    return round(ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)], 4)

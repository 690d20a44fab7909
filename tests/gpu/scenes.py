"""One scene after the other: what fails is a row of the report, and the next one is played all the same."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping

from tests.kit.node import NodeError
from tests.kit.report import Report

FAILURES = (NodeError, LookupError, TypeError, ValueError, OSError, subprocess.SubprocessError)


def play(report: Report, scenes: Mapping[str, Callable[[], None]]) -> None:
    for name, scene in scenes.items():
        try:
            scene()
        except FAILURES as error:
            report.row(name, "runs", f"did not: {str(error)[-600:]}", False)


def rate(answer: Mapping[str, float]) -> float:
    """Kernels' iterations a second, in billions."""
    return answer["gpu_ns"] / answer["wall_ns"]

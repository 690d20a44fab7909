"""The parts of a scene, one after the other: what fails is a row of the report, and the next part is played all the same."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping

from tests.kit.node import NodeError
from tests.kit.report import Report

FAILURES = (NodeError, LookupError, TypeError, ValueError, OSError, subprocess.SubprocessError)


def play(report: Report, parts: Mapping[str, Callable[[], None]]) -> None:
    for name, part in parts.items():
        try:
            part()
        except FAILURES as error:
            report.row(name, "runs", f"did not: {str(error)[-600:]}", False)

"""Results of a run on disk: each row is appended and flushed to the disk at once, so that a run that is cut short keeps
everything it measured. Figures that a program reads (`facts`) are written again after each row."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.kit.report import Report

ROWS = "rows.jsonl"
FACTS = "facts.json"


def append(out: Path, row: dict[str, Any]) -> None:
    """One line; on the disk when this returns, and never a part of a line (one write with O_APPEND)."""
    line = (json.dumps(row, ensure_ascii=False) + "\n").encode()
    descriptor = os.open(out / ROWS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, line)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace(path: Path, content: Any) -> None:
    """Written beside and renamed: a reader sees the old or the new one."""
    beside = path.with_name(path.name + ".new")
    with beside.open("w") as file:
        json.dump(content, file, indent=1)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    beside.rename(path)


def row(
    scene: str, card: str, seconds: float, what: str, wanted: str, got: str, held: bool | None
) -> dict[str, Any]:
    return {
        "scene": scene,
        "card": card,
        "utc": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "seconds": round(seconds, 2),
        "what": what,
        "wanted": wanted,
        "got": got,
        "held": held,
    }


@dataclass
class Rows(Report):
    """A scene's report. `held` of a row is None where it is a figure without a promise."""

    scene: str = ""
    card: str = ""
    out: Path = field(default_factory=Path)
    began: float = field(default_factory=time.monotonic)

    def row(self, what: str, want: str, got: str, held: bool) -> None:
        super().row(what, want, got, held)
        self._write(what, want, got, held)

    def figure(self, what: str, got: str) -> None:
        """Something measured that promises nothing: a baseline, a cost."""
        print(f"  --   {what:<46} {'':<31} got {got}", flush=True)
        self._write(what, "", got, None)

    def _write(self, what: str, want: str, got: str, held: bool | None) -> None:
        seconds = time.monotonic() - self.began
        append(self.out, row(self.scene, self.card, seconds, what, want, got, held))
        self.save()

    def save(self) -> None:
        (self.out / "facts").mkdir(exist_ok=True)
        replace(self.out / "facts" / f"{self.scene}.json", self.facts)

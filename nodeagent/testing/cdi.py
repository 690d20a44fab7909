"""A CdiPort that keeps what it was told, in a directory, so that it outlives the daemon."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from nodeagent.core.events import write_plain
from nodeagent.kubelet_ports import NONCE
from nodeagent.ports import ContainerAnswer, Finding, GrantMounts
from nodeagent.units import GpuUuid

SETTLES_S: Final = 0.025


class FakeCdi:
    fixes_gpus = False

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.fails = ""
        """What writing raises, as an OSError."""
        directory.mkdir(parents=True, exist_ok=True)

    def answer(self, nonce: str, gpus: Sequence[GpuUuid]) -> ContainerAnswer:
        return ContainerAnswer(cdi_devices=(f"sluice.dev/grant={nonce}",))

    def write(self, nonce: str, edits: GrantMounts) -> float:
        if self.fails:
            raise OSError(self.fails)
        if not NONCE.fullmatch(nonce):
            raise ValueError(f"{nonce!r} is not a nonce")
        text = json.dumps(write_plain(edits))
        path = self._directory / nonce
        if path.exists() and path.read_text(encoding="utf-8") == text:
            return 0.0
        path.write_text(text, encoding="utf-8")
        return SETTLES_S

    def remove(self, nonce: str) -> None:
        (self._directory / nonce).unlink(missing_ok=True)

    def names(self) -> list[str]:
        return sorted(path.name for path in self._directory.iterdir())

    def finding(self, gpus: Sequence[GpuUuid]) -> Finding:
        level = "missing" if self.fails else "ok"
        return Finding("cdi", level, self.fails or str(self._directory))

    def read(self, nonce: str) -> dict[str, Any]:
        """What was written, as plain values."""
        found: dict[str, Any] = json.loads((self._directory / nonce).read_text(encoding="utf-8"))
        return found

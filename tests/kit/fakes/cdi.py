"""A CdiPort that keeps what it was given, in a directory, so that it outlives the daemon."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, Final

from nodeagent.core.kubelet.cdi import device_names
from nodeagent.ports.containers import ContainerAnswer, GivenFiles, GrantMounts
from nodeagent.ports.kubelet import NONCE
from nodeagent.ports.views import Finding
from nodeagent.units import GpuUuid
from sluicecommon.plain import write_all_fields

SETTLES_S: Final = 0.025


class FakeCdi:
    fixes_gpus = False

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.fails = ""
        """Text of the OSError that writing raises; empty: none."""
        self.installed = "driver 570"
        """Content that all containers share now; empty: none."""
        self.driver = ""
        self._drivers = directory / "drivers"
        self._drivers.mkdir(parents=True, exist_ok=True)

    def renew_driver(self, files: GivenFiles) -> None:
        if not self.installed:
            self.driver = ""
            raise ValueError("two drivers are installed")
        self.driver = hashlib.sha256(self.installed.encode()).hexdigest()[:32]
        self._write_driver(self.driver)

    def _write_driver(self, generation: str) -> None:
        (self._drivers / generation).write_text(self.installed, encoding="utf-8")

    def keep_drivers(self, drivers: AbstractSet[str]) -> None:
        for path in self._drivers.iterdir():
            if path.name not in drivers and path.name != self.driver:
                path.unlink()

    def drivers(self) -> dict[str, str]:
        """Files shared by all containers, by generation."""
        return {path.name: path.read_text(encoding="utf-8") for path in self._drivers.iterdir()}

    def answer(self, nonce: str, gpus: Sequence[GpuUuid], driver: str) -> ContainerAnswer:
        return ContainerAnswer(cdi_devices=device_names(nonce, driver))

    def write(self, nonce: str, edits: GrantMounts, driver: str) -> float:
        if self.fails:
            raise OSError(self.fails)
        if not NONCE.fullmatch(nonce):
            raise ValueError(f"{nonce!r} is not a nonce")
        if driver:
            self._write_driver(driver)
        text = json.dumps({**write_all_fields(edits), "driver": driver})
        path = self._directory / nonce
        if path.exists() and path.read_text(encoding="utf-8") == text:
            return 0.0
        path.write_text(text, encoding="utf-8")
        return SETTLES_S

    def remove(self, nonce: str) -> None:
        (self._directory / nonce).unlink(missing_ok=True)

    def names(self) -> list[str]:
        return sorted(path.name for path in self._directory.iterdir() if path.is_file())

    def finding(self, gpus: Sequence[GpuUuid]) -> Finding:
        level = "missing" if self.fails else "ok"
        return Finding("cdi", level, self.fails or str(self._directory))

    def read(self, nonce: str) -> dict[str, Any]:
        """Content that was written for a nonce, as plain values."""
        found: dict[str, Any] = json.loads((self._directory / nonce).read_text(encoding="utf-8"))
        return found

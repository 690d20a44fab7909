"""Builds the small Go programs that hold the real code, and speaks with one: a line of JSON each way."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.kit.places import BUILD, REPO

SOURCES = REPO / "tests" / "peers"
REQUIRED = bool(os.environ.get("SLUICE_PEERS_REQUIRED"))
"""Set by `make test-peers`: what cannot be built fails there instead of being skipped."""
BUILD_DEADLINE_S = 1500


def build(name: str, mod: str = "go.mod", package: str = ".") -> Path:
    """The program of tests/peers/NAME, or of another package of its modules, with those of `mod`. Skips where there is no Go, or nothing to build from:
    the modules come from the Go proxy, once."""
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        give_up("no Go toolchain: the real peers were not asked (apt install golang-go, or go.dev)")
    assert go is not None
    which = package.removeprefix(".").replace("/", "-")
    made = BUILD / "peers" / f"{name}{which}-{mod.removesuffix('.mod')}"
    made.parent.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [go, "build", "-mod=readonly", f"-modfile={mod}", "-buildvcs=false", "-o", made, package],
        cwd=SOURCES / name,
        capture_output=True,
        text=True,
        timeout=BUILD_DEADLINE_S,
    )
    if done.returncode != 0 and _is_the_network(done.stderr):
        give_up(f"the modules of tests/peers/{name} cannot be fetched: {done.stderr[-300:]}")
    assert done.returncode == 0, done.stderr
    return made


def give_up(why: str) -> None:
    if REQUIRED:
        pytest.fail(why)
    pytest.skip(why)


def _is_the_network(text: str) -> bool:
    signs = ("dial tcp", "no such host", "proxyconnect", "i/o timeout", "GOPROXY", "403 Forbidden")
    return any(sign in text for sign in signs)


class Peer:
    def __init__(self, command: Sequence[str | Path], **options: Any) -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options
        )

    def ask(self, do: str, **more: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"do": do, **more}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"the peer ended with {self.process.wait(timeout=10)}"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

"""Real cgroups named as the kubelet names a pod's, and programs in them."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from nodeagent.adapters.processes.cgroups import freezer_root, unified_root
from tests.kit.node import until

ROOTS = {"unified": unified_root(), "freezer": freezer_root()}
"""Where this host has each hierarchy; None: not at all."""
each_hierarchy = pytest.mark.parametrize(
    "hierarchy",
    [
        pytest.param(
            name,
            marks=pytest.mark.skipif(
                ROOTS[name] is None, reason=f"THIS HOST HAS NO {name.upper()} CGROUPS: not tried"
            ),
        )
        for name in ("unified", "freezer")
    ],
)


class Container:
    """One container's cgroup in one hierarchy; in all others its processes are where they were."""

    def __init__(self, hierarchy: str, path: str) -> None:
        root = ROOTS[hierarchy]
        assert root is not None
        self.hierarchy, self.path = hierarchy, path
        self.directory = root / path.lstrip("/")
        self.directory.mkdir(parents=True)
        self.programs: list[subprocess.Popen[str]] = []

    def run(
        self, *command: str | Path, environment: Mapping[str, str] | None = None, below: str = ""
    ) -> subprocess.Popen[str]:
        """A program that is in it, or in a cgroup `below` it, from its first moment."""
        inside = self.directory / below
        inside.mkdir(exist_ok=True)
        words = ["sh", "-c", f'echo $$ > {inside}/cgroup.procs && exec "$@"', "sh", *command]
        process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )
        self.programs.append(process)
        return process

    def pids(self) -> set[int]:
        found: set[int] = set()
        for where, _below, _files in os.walk(self.directory):
            found |= {int(pid) for pid in Path(where, "cgroup.procs").read_text().split()}
        return found

    def held(self) -> bool:
        if self.hierarchy == "unified":
            return "frozen 1" in (self.directory / "cgroup.events").read_text()
        return (self.directory / "freezer.state").read_text().strip() == "FROZEN"

    def hold(self) -> None:
        self._write("1", "FROZEN")

    def let_go(self) -> None:
        self._write("0", "THAWED")

    def _write(self, unified: str, freezer: str) -> None:
        name, word = ("cgroup.freeze", unified) if self.hierarchy == "unified" else ("freezer.state", freezer)  # fmt: skip
        (self.directory / name).write_text(word)

    def close(self) -> None:
        self.let_go()
        for program in self.programs:
            program.kill()
            program.communicate()
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        for where, _below, _files in os.walk(self.directory, topdown=False):
            until(f"{where} is empty and gone", lambda path=where: os.rmdir(path) is None)


def answers(program: subprocess.Popen[str], within_s: float = 30.0) -> bool:
    """True if a `cat` runs: it gives back its input."""
    assert program.stdin is not None
    assert program.stdout is not None
    program.stdin.write("are you there?\n")
    program.stdin.flush()
    ready, _, _ = select.select([program.stdout], [], [], within_s)
    return bool(ready) and program.stdout.readline() == "are you there?\n"


@contextlib.contextmanager
def pods(hierarchy: str, **containers: str) -> Iterator[dict[str, Container]]:
    """Containers by name, each in a cgroup; each value is `pod UID/container`."""
    base = f"/sluice-test-{os.getpid()}/kubepods"
    made: dict[str, Container] = {}
    try:
        for name, place in containers.items():
            made[name] = Container(hierarchy, f"{base}/pod{place}")
        yield made
    finally:
        for one in made.values():
            one.close()
        root = ROOTS[hierarchy]
        assert root is not None
        for where, _below, _files in os.walk(root / base.split("/")[1], topdown=False):
            os.rmdir(where)

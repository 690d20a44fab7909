"""The control groups of one cluster: a child of our own group in each hierarchy, which the node sees as its root.

Version 1 (also beside a cgroup2 without controllers) and version 2 alone. In version 2 a group with processes cannot hand
controllers on, so the node's own processes live in a child.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
V1_CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids")
V2_CONTROLLERS = ("cpuset", "cpu", "io", "memory", "pids")
REMOVAL_S = 10.0


def is_v2(root: Path = ROOT) -> bool:
    return (root / "cgroup.controllers").exists()


def create(name: str) -> list[Path]:
    """One directory in each hierarchy. Raises OSError."""
    ours = _own()
    if is_v2():
        parent = ROOT / ours.get("", "/").lstrip("/")
        _hand_on(parent)
        return [_made(parent / name)]
    made = []
    for controller in (*V1_CONTROLLERS, "systemd", "unified"):
        hierarchy = ROOT / controller
        if not hierarchy.is_dir():
            continue
        key = {"systemd": "name=systemd", "unified": ""}.get(controller, controller)
        path = _made(hierarchy / ours.get(key, "/").lstrip("/") / name)
        if controller == "cpuset":  # empty ones take no process
            for file in ("cpuset.cpus", "cpuset.mems"):
                (path / file).write_text((path.parent / file).read_text())
        made.append(path)
    return made


def join(paths: list[Path], pid: int = 0) -> None:
    for path in paths:
        (path / "cgroup.procs").write_text(str(pid or os.getpid()))


def take_over_v2(deadline_s: float = 10.0) -> None:
    """Delegate the controllers of the node's cgroup; called by the node's first process, once it
    sees its own group as the root."""
    inner = _made(ROOT / "node")
    (inner / "cgroup.procs").write_text("1")
    end_s = time.monotonic() + deadline_s
    while True:  # the process that holds the namespaces is moved from outside meanwhile
        try:
            _hand_on(ROOT)
            return
        except OSError:
            if time.monotonic() > end_s:
                raise
            time.sleep(0.05)


def remove(paths: list[Path]) -> list[Path]:
    """Remove cgroups; returns those that could not be removed."""
    end_s = time.monotonic() + REMOVAL_S
    left = [path for path in paths if path.exists()]
    while left and time.monotonic() < end_s:
        for path in left:
            for directory, _, _ in os.walk(path, topdown=False):
                with suppress(OSError):
                    os.rmdir(directory)
        left = [path for path in left if path.exists()]
        if left:
            time.sleep(0.1)
    return left


def _own() -> dict[str, str]:
    """Path of this process by controller; version 2 has the empty name."""
    found = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            found[name] = path
    return found


def _made(path: Path) -> Path:
    path.mkdir(exist_ok=True)
    return path


def _hand_on(path: Path) -> None:
    there = (path / "cgroup.controllers").read_text().split()
    wanted = " ".join(f"+{one}" for one in V2_CONTROLLERS if one in there)
    (path / "cgroup.subtree_control").write_text(wanted)

"""Pods that have processes on this node, by the names of their cgroups; the mount points of the
hierarchies; and the cgroup of a container.

The kubelet names a pod's cgroup `pod<uid>` below `kubepods`, the systemd driver
`kubepods…-pod<uid>.slice` with the dashes of the UID as underscores; both forms occur in either
version of cgroups.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from nodeagent.adapters.host import mounts
from nodeagent.units import PodUid

_NAME: Final = re.compile(
    r"(?:^|/|-)pod"
    r"([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})"
    r"(?:\.slice)?(?:/|$)"
)
"""A UUID, or the 32 digits of a static pod."""
_USERS: Final = "/user.slice/"
_DEPTH: Final = 4
"""Levels to search: kubelet, kubepods, its class, the pod."""


def pod_of(pid: int) -> PodUid | None:
    """The pod that a process belongs to; None if it is in none or has ended."""
    try:
        return pod_in(text_of(pid))
    except OSError:
        return None


def text_of(pid: int) -> str:
    """The text of /proc/PID/cgroup. Read as bytes, because Python's text files take a carriage
    return for the end of a line, and a cgroup's name may contain one. Raises OSError."""
    return Path(f"/proc/{pid}/cgroup").read_bytes().decode("utf-8", "replace")


def container_path(path: str) -> str:
    """The cgroup of the container that `path` is in: the one right below its pod's, whatever the
    container created below it. Empty if it is in none; freezing that would freeze other processes
    too."""
    found = _named(path)
    if found is None or ".." in path.split("/"):
        return ""
    below = path[found.end() :].split("/", 1)[0]
    return path[: found.end()] + below if below else ""


def unified_path(text: str) -> str:
    """The path in the unified hierarchy, from a /proc/PID/cgroup; empty if there is none."""
    return _path_in(text, "0::")


def freezer_path(text: str) -> str:
    """The path in version 1's freezer, from a /proc/PID/cgroup; empty if there is none."""
    return _path_in(text, ":freezer:")


def _path_in(text: str, mark: str) -> str:
    for line in text.split("\n"):
        before, found, path = line.partition(mark)
        if found and (before.isdecimal() if before else mark == "0::"):
            return path.removesuffix(" (deleted)")
    return ""


def unified_root() -> Path | None:
    """The mount point of cgroup2: /sys/fs/cgroup, or a directory in it on hosts with both
    versions."""
    return _mounted(lambda kind, options: kind == "cgroup2")


def freezer_root() -> Path | None:
    """The mount point of version 1's freezer."""
    return _mounted(lambda kind, options: kind == "cgroup" and "freezer" in options)


def _mounted(is_it: Callable[[str, Sequence[str]], bool]) -> Path | None:
    return next((one.path for one in mounts.table() if is_it(one.kind, one.options)), None)


def pod_in(text: str) -> PodUid | None:
    """The first pod named in a /proc/PID/cgroup or in a path. Only a newline ends a line: the
    kernel forbids it in a cgroup's name, but none of the other characters at which splitlines()
    splits."""
    for line in text.split("\n"):
        found = _named(line)
        if found is not None:
            return PodUid(found[1].replace("_", "-"))
    return None


def _named(path: str) -> re.Match[str] | None:
    # Below user.slice any user can create a cgroup with the name of another user's pod.
    return None if _USERS in path else _NAME.search(path)


class CgroupPods:
    """A PodCgroups over the cgroup file system."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def pods(self) -> frozenset[PodUid] | None:
        hierarchy = _hierarchy(self._root)
        try:
            entries = os.listdir(hierarchy)
        except OSError:
            return None
        found: set[PodUid] = set()
        for name in entries:
            self._walk(hierarchy / name, name, 1, found)
        return frozenset(found)

    def _walk(self, path: Path, name: str, depth: int, found: set[PodUid]) -> None:
        pod = pod_in(name)
        if pod is not None:
            found.add(pod)
            return
        on_the_way = "kubepods" in name or "kubelet" in name or depth == 1
        if depth >= _DEPTH or not on_the_way:
            return
        try:
            below = [
                entry.name for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)
            ]
        except OSError:  # It was removed, or is not a directory.
            return
        for entry in below:
            self._walk(path / entry, entry, depth + 1, found)


def _hierarchy(root: Path) -> Path:
    """The roots to search; version 1 has one tree per controller, all with the same pods."""
    if (root / "cgroup.controllers").exists():
        return root
    trees = (root / name for name in ("systemd", "pids", "memory"))
    return next((tree for tree in trees if tree.is_dir()), root)

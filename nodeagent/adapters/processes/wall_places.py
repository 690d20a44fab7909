"""Cgroups on which the driver's memory limits are set: a container's own, or one created for a
grant's programs. Implements WallPlaces.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from nodeagent.adapters.processes.cgroups import (
    container_path,
    pod_in,
    text_of,
    unified_path,
    unified_root,
)
from nodeagent.ports.driver.walls import NoCgroup, Place
from nodeagent.units import GrantId

NO_HIERARCHY: Final = "this host has no cgroup v2"
CONTROLLER: Final = "dmem"
"""The kernel's controller of device memory, since Linux 6.14. Without it the driver does its own
accounting."""


def cgroup_name(runtime: Path) -> str:
    """Name of the directory for the cgroups of one daemon; another one may run on this machine."""
    if runtime == Path("/run/sluice"):
        return "sluice"
    return f"sluice-{hashlib.sha256(os.fsencode(runtime)).hexdigest()[:12]}"


class CgroupPlaces:
    def __init__(self, name: str, root: Path | None = None) -> None:
        """`name` is the directory below the hierarchy's root in which cgroups are created."""
        self._root = root or unified_root()
        self._name = name

    def missing(self) -> str:
        return "" if self._root is not None else NO_HIERARCHY

    def of_container(self, pid: int) -> Place:
        try:
            text = text_of(pid)
        except OSError:
            raise NoCgroup(f"process {pid} has ended") from None
        path = unified_path(text)
        found = container_path(path)
        if self._root is None or not found:
            where = path or NO_HIERARCHY
            raise NoCgroup(f"process {pid} is not in a container's own cgroup: {where}")
        return Place(str(self._root / found.strip("/")), pod_in(path) or "")

    def make(self, grant: GrantId, pid: int) -> str:
        if self._root is None:
            raise NoCgroup(NO_HIERARCHY)
        above = self._root / self._name
        cgroup = above / _checked(grant)
        try:
            above.mkdir(exist_ok=True)
            self._delegate_controller(self._root)
            self._delegate_controller(above)
            cgroup.mkdir(exist_ok=True)
            (cgroup / "cgroup.procs").write_text(str(pid), encoding="ascii")
        except OSError as error:
            raise NoCgroup(f"{cgroup}: {error.strerror}") from error
        return str(cgroup)

    @staticmethod
    def _delegate_controller(above: Path) -> None:
        """Enable the controller for the cgroups below, if the kernel has it. Raises OSError."""
        if CONTROLLER in (above / "cgroup.controllers").read_text(encoding="ascii").split():
            (above / "cgroup.subtree_control").write_text(f"+{CONTROLLER}", encoding="ascii")

    def exists(self, cgroup: str) -> bool:
        return Path(cgroup).is_dir()

    def around(self, cgroup: str) -> str:
        for path in Path(cgroup).parents:
            if path == self._root:
                break
            if path.is_dir():
                return str(path)
        return ""

    def inside(self, cgroup: str) -> list[str]:
        try:
            return [one.path for one in os.scandir(cgroup) if one.is_dir(follow_symlinks=False)]
        except OSError:
            return []

    def remove(self, cgroup: str) -> bool:
        try:
            os.rmdir(cgroup)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        with contextlib.suppress(OSError):  # This fails until the last process has ended.
            os.rmdir(Path(cgroup).parent)
        return True

    def made(self) -> Mapping[GrantId, str]:
        if self._root is None:
            return {}
        try:
            found = [one for one in (self._root / self._name).iterdir() if one.is_dir()]
        except OSError:
            return {}
        return {GrantId(one.name): str(one) for one in found}


def _checked(grant: GrantId) -> str:
    """The grant's name, checked for use in a path."""
    if not grant or "/" in grant or grant.startswith("."):
        raise NoCgroup(f"{grant!r} is not usable as a cgroup's name")
    return grant

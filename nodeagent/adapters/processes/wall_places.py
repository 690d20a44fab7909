"""Cgroups that the driver's limits are set on: a container's own, or one made for the programs of a
grant. Implements WallPlaces."""

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

NO_HIERARCHY: Final = "this host has no cgroups of version 2"
CONTROLLER: Final = "dmem"
"""The kernel's, since Linux 6.14. Where it is not there, the driver keeps a book of its own."""


def cgroup_name(runtime: Path) -> str:
    """Of the directory for the cgroups of one daemon: another one may run on this machine."""
    if runtime == Path("/run/sluice"):
        return "sluice"
    return f"sluice-{hashlib.sha256(os.fsencode(runtime)).hexdigest()[:12]}"


class CgroupPlaces:
    def __init__(self, name: str, root: Path | None = None) -> None:
        """`name`: of the directory below the hierarchy's root in which we make cgroups."""
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
            raise NoCgroup(f"process {pid} is in no cgroup of a container's own: {where}")
        return Place(str(self._root / found.strip("/")), pod_in(path) or "")

    def make(self, grant: GrantId, pid: int) -> str:
        if self._root is None:
            raise NoCgroup(NO_HIERARCHY)
        above = self._root / self._name
        cgroup = above / _checked(grant)
        try:
            above.mkdir(exist_ok=True)
            self._let_down(self._root)
            self._let_down(above)
            cgroup.mkdir(exist_ok=True)
            (cgroup / "cgroup.procs").write_text(str(pid), encoding="ascii")
        except OSError as error:
            raise NoCgroup(f"{cgroup}: {error.strerror}") from error
        return str(cgroup)

    @staticmethod
    def _let_down(above: Path) -> None:
        """Have the kernel count in the cgroups below, where it can. Raises OSError."""
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
        with contextlib.suppress(OSError):  # until the last one is gone
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
    """As part of a path."""
    if not grant or "/" in grant or grant.startswith("."):
        raise NoCgroup(f"{grant!r} cannot be a cgroup's name")
    return grant

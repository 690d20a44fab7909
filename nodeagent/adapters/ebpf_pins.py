"""Refusals as they are in bpffs: a directory per daemon, in it a pinned link per cgroup, named by
the cgroup's inode, and a symbolic link to the runtime directory of the daemon they belong to.

A link is in force while its pin or a descriptor of it is there, so it ends by removing the pin when
its daemon is gone; that needs no eBPF.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nodeagent.adapters import instance_lock
from nodeagent.ports import Finding
from nodeagent.watch_ports import NotPossible

BPFFS: Final = Path("/sys/fs/bpf")
PIN: Final = "deny-"
ASIDE: Final = "old-"
"""A pin while its successor is being attached; one that is left means that this was interrupted."""
OWNER: Final = "owner"
SYSTEM: Final = "sluice"
"""Of the system's daemon: made by tmpfiles.d, a mount point in its unit, so never removed by us."""
SYSTEM_RUNTIME: Final = Path("/run/sluice")


def pins_of(runtime: Path) -> str:
    """Each daemon its own: it takes over what it finds there."""
    if runtime == SYSTEM_RUNTIME:
        return SYSTEM
    return f"{SYSTEM}-{zlib.crc32(os.fsencode(runtime)):08x}"


def own(directory: Path, runtime: str) -> None:
    """Say in the directory of pins whose it is. Raises OSError."""
    if not runtime or directory.name == SYSTEM:
        return
    with contextlib.suppress(FileExistsError):
        os.symlink(runtime, directory / OWNER)


def pinned(directory: Path) -> dict[Path, int]:
    """Pins and the inodes of their cgroups; empty where there is no such directory."""
    found = {}
    with contextlib.suppress(OSError):
        for name in os.listdir(directory):
            for kind in (PIN, ASIDE):
                number = name.removeprefix(kind)
                if number != name and number.isdecimal():
                    found[directory / name] = int(number)
    return found


def allow(directory: Path, cgroup_id: int) -> None:
    """Raises OSError. Idempotent."""
    for pin, number in pinned(directory).items():
        if number == cgroup_id:
            with contextlib.suppress(FileNotFoundError):
                pin.unlink()


def leave(directory: Path) -> None:
    """At the end of its daemon: remove the directory unless something is refused still."""
    if directory.name == SYSTEM or pinned(directory):
        return
    with contextlib.suppress(OSError):  # not there, or not ours to remove: `sluice doctor` names it
        with contextlib.suppress(FileNotFoundError):
            (directory / OWNER).unlink()
        directory.rmdir()


@dataclass(frozen=True, slots=True)
class Stale:
    """A directory of pins whose daemon is not there."""

    directory: Path
    owner: str
    """Its runtime directory; empty: it did not say."""
    cgroups: tuple[int, ...]


def stale(root: Path = BPFFS) -> list[Stale]:
    """None where bpffs may not be looked into."""
    found = []
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(root)):
            directory = root / name
            if not name.startswith(SYSTEM) or not directory.is_dir():
                continue
            owner = _owner(directory)
            if owner and instance_lock.is_held(Path(owner)):
                continue
            cgroups = tuple(sorted(set(pinned(directory).values())))
            if name != SYSTEM or cgroups:
                found.append(Stale(directory, owner, cgroups))
    return found


def _owner(directory: Path) -> str:
    if directory.name == SYSTEM:
        return str(SYSTEM_RUNTIME)
    try:
        return os.readlink(directory / OWNER)
    except OSError:
        return ""


def findings(root: Path = BPFFS) -> list[Finding]:
    """For `sluice doctor`: one line, however many there are."""
    found = stale(root)
    if not found:
        return []
    refusing = [one for one in found if one.cgroups]
    empty = len(found) - len(refusing)
    told, remedies = [], []
    for one in refusing:
        owner = one.owner or "a daemon that did not leave its name"
        told.append(
            f"{one.directory} refuses GPUs to {len(one.cgroups)} cgroups for {owner}, which is not"
            " running"
        )
        remedies.append(
            f"start that daemon again, which looks through them, or allow their opens: rm -r"
            f" {one.directory}"
        )
    if empty:
        names = " ".join(str(one.directory) for one in found if not one.cgroups)
        told.append(f"{empty} empty directories of daemons that are not running")
        remedies.append(f"rm -r {names}")
    return [
        Finding("ebpf refusals left", "warning", "; ".join(told), "; ".join(remedies)),
    ]


class DenyPins:
    """The pins of one daemon."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def refused(self) -> frozenset[int]:
        return frozenset(pinned(self._directory).values())

    def allow(self, cgroup_id: int) -> None:
        try:
            allow(self._directory, cgroup_id)
        except OSError as error:
            raise NotPossible(f"{self._directory}: {error.strerror}") from error

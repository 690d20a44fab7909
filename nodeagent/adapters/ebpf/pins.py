"""Cgroups that are refused GPUs, as pins in bpffs: one directory per daemon, with a
pinned link per cgroup, named by the cgroup's inode, and a symbolic link to the daemon's runtime
directory.

A link is in force while its pin or a descriptor of it exists. When its daemon does not run,
removing the pin ends it, which needs no eBPF.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nodeagent.adapters.ledger import instance_lock
from nodeagent.ports.views import Finding
from nodeagent.ports.watch import NotPossible

BPFFS: Final = Path("/sys/fs/bpf")
PIN: Final = "deny-"
ASIDE: Final = "old-"
"""Prefix of a pin while its successor is being attached; it remains if that is interrupted."""
OWNER: Final = "owner"
SYSTEM: Final = "sluice"
"""Directory of the system's daemon: made by tmpfiles.d and a mount point in its unit, so it is
never removed here."""
SYSTEM_RUNTIME: Final = Path("/run/sluice")


def pins_of(runtime: Path) -> str:
    """Name of a daemon's own directory, in which it takes over the pins that it finds."""
    if runtime == SYSTEM_RUNTIME:
        return SYSTEM
    return f"{SYSTEM}-{zlib.crc32(os.fsencode(runtime)):08x}"


def own(directory: Path, runtime: str) -> None:
    """Write the owner into the directory of pins. Raises OSError."""
    if not runtime or directory.name == SYSTEM:
        return
    with contextlib.suppress(FileExistsError):
        os.symlink(runtime, directory / OWNER)


def pinned(directory: Path) -> dict[Path, int]:
    """Pins and the inodes of their cgroups; empty if there is no such directory."""
    found = {}
    with contextlib.suppress(OSError):
        for name in os.listdir(directory):
            for kind in (PIN, ASIDE):
                number = name.removeprefix(kind)
                if number != name and number.isdecimal():
                    found[directory / name] = int(number)
    return found


def allow(directory: Path, cgroup_id: int) -> None:
    """Remove a pin. Idempotent. Raises OSError."""
    for pin, number in pinned(directory).items():
        if number == cgroup_id:
            with contextlib.suppress(FileNotFoundError):
                pin.unlink()


def leave(directory: Path) -> None:
    """Remove the directory when its daemon ends, unless refusals are in force."""
    if directory.name == SYSTEM or pinned(directory):
        return
    with contextlib.suppress(OSError):  # It is missing or not removable; `sluice doctor` names it.
        with contextlib.suppress(FileNotFoundError):
            (directory / OWNER).unlink()
        directory.rmdir()


@dataclass(frozen=True, slots=True)
class Stale:
    """A directory of pins whose daemon does not run."""

    directory: Path
    owner: str
    """Runtime directory of the daemon; empty if it is not recorded."""
    cgroups: tuple[int, ...]


def stale(root: Path = BPFFS) -> list[Stale]:
    """Directories without a running daemon; empty if bpffs cannot be read."""
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
    """Findings for `sluice doctor`, one for each kind."""
    found = stale(root)
    dead = [one for one in found if one.cgroups and one.owner]
    unnamed = [one for one in found if one.cgroups and not one.owner]
    empty = [one for one in found if not one.cgroups]
    made = []
    if dead:
        listed = ", ".join(
            f"{one.directory} ({_cgroups(one)}, of the daemon in {one.owner})" for one in dead
        )
        made.append(
            Finding(
                "ebpf refusals left",
                "warning",
                f"GPUs are refused for daemons that do not run: {listed}",
                "start that daemon again, which reviews them, or run `sluice uncontain --all`"
                f" with its --config; where that is gone, too: rm -r {_names(dead)}",
            )
        )
    if unnamed:
        made.append(
            Finding(
                "ebpf refusals unnamed",
                "warning",
                "GPUs are refused for unnamed daemons of an earlier version:"
                f" {', '.join(f'{one.directory} ({_cgroups(one)})' for one in unnamed)}",
                f"where none of them runs: rm -r {_names(unnamed)}",
            )
        )
    if empty:
        made.append(
            Finding(
                "ebpf directories left",
                "warning",
                f"{len(empty)} directories of daemons that do not run or are of earlier versions;"
                " nothing is refused by them",
                f"rm -r {_names(empty)}",
            )
        )
    return made


def _cgroups(one: Stale) -> str:
    return "1 cgroup" if len(one.cgroups) == 1 else f"{len(one.cgroups)} cgroups"


def _names(found: list[Stale]) -> str:
    return " ".join(str(one.directory) for one in found)


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

"""Removes what Sluice left on a node: mounts, regions, ledger, libraries, CDI files, pins.

It works inside a container as well: everything is done in the mount namespace of the host's first
process, by the host's own paths, so that no directory has to be mounted into the container to be
removed. Files of others stay, and mounts are not crossed.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nodeagent.adapters.host import mounts

HOST_NAMESPACE: Final = "/proc/1/ns/mnt"
DIRECTORIES: Final = (
    Path("/run/sluice"),
    Path("/var/lib/sluice"),
    Path("/var/lib/sluice-libraries"),
    Path("/sys/fs/bpf/sluice"),
    Path("/var/lib/sluice-sim"),
    Path("/run/sluice-sim"),
)
OUR_CDI_FILES: Final = ("sluice.dev-grant_*.json", "sluice.dev-driver_*.json", "sluice-sim.json")
OUR_SOCKETS: Final = "sluice-*.sock"
OUR_DRIVER_SOCKETS: Final = "sluice.dev-*-reg.sock"


@dataclass(frozen=True, slots=True)
class Host:
    """Paths on the host; `root` is for tests."""

    kubelet: Path = Path("/var/lib/kubelet")
    cdi: Path = Path("/var/run/cdi")
    directories: Sequence[Path] = DIRECTORIES
    mount_table: Path = Path("/proc/self/mountinfo")


def enter_host() -> None:
    """Move this process to the host's mount namespace. No module may be imported afterwards,
    because the host has other files. Raises OSError."""
    if os.stat("/proc/self/ns/mnt").st_ino == os.stat(HOST_NAMESPACE).st_ino:
        return
    namespace = os.open(HOST_NAMESPACE, os.O_RDONLY | os.O_CLOEXEC)
    try:
        mounts.enter(namespace)
    finally:
        os.close(namespace)
    os.chdir("/")


def remove(host: Host) -> list[str]:
    """Remove everything. Returns what could not be removed and why; empty if nothing is left.
    Idempotent."""
    troubles: list[str] = []
    for target in _mounts_below(host):
        try:
            mounts.detach(target)
        except OSError as error:
            troubles.append(f"{target}: {error.strerror}")
    for directory in host.directories:
        troubles += _remove_tree(directory)
    plugins = host.kubelet / "device-plugins"
    files = [path for pattern in OUR_CDI_FILES for path in host.cdi.glob(pattern)]
    registered = list((host.kubelet / "plugins_registry").glob(OUR_DRIVER_SOCKETS))
    for path in [*files, *list(plugins.glob(OUR_SOCKETS)), *registered]:
        troubles += _attempt(path, path.unlink)
    troubles += _remove_tree(host.kubelet / "plugins" / "sluice.dev")
    # It was made for our volume on a node without a kubelet. The CDI directories stay even if
    # they are empty, because runtimes watch them and they may be mount points.
    with contextlib.suppress(OSError):
        (host.kubelet / "pods-api").rmdir()
    return troubles


def _mounts_below(host: Host) -> Iterator[Path]:
    """Mounts below a path, the deepest first."""
    found = set()
    for one in mounts.read_table(host.mount_table.read_bytes()):
        if any(directory in one.path.parents for directory in host.directories):
            found.add(one.path)
    yield from sorted(found, reverse=True)


def _remove_tree(path: Path) -> list[str]:
    try:
        top = path.lstat()
    except FileNotFoundError:
        return []
    except OSError as error:
        return [f"{path}: {error.strerror}"]
    return _remove(path, top.st_dev)


def _remove(path: Path, device: int) -> list[str]:
    try:
        facts = path.lstat()
    except FileNotFoundError:
        return []
    except OSError as error:
        return [f"{path}: {error.strerror}"]
    if not stat.S_ISDIR(facts.st_mode):
        return _attempt(path, path.unlink)
    if facts.st_dev != device:
        return [f"{path}: a file system is mounted there"]
    troubles = [trouble for child in sorted(path.iterdir()) for trouble in _remove(child, device)]
    return troubles or _attempt(path, path.rmdir)


def _attempt(path: Path, call: Callable[[], None]) -> list[str]:
    try:
        call()
    except FileNotFoundError:
        return []
    except OSError as error:
        return [f"{path}: {error.strerror}"]
    return []

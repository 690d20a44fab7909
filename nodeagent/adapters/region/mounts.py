"""Mounts a grant's tmpfs in the host's mount namespace, whichever namespace the daemon is in.

A unit with ProtectSystem=, PrivateTmp= and the like runs in its own mount namespace, as does a
container, and jobs would not see its mounts. So one thread moves to the namespace of PID 1 and
makes the mounts; they propagate back to the daemon, because its namespace is a slave of that one.
Needs CAP_SYS_ADMIN, CAP_SYS_CHROOT and CAP_SYS_PTRACE.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Final

MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8
MNT_DETACH, UMOUNT_NOFOLLOW = 2, 8
CLONE_FS, CLONE_NEWNS = 0x200, 0x20000
HOST_NAMESPACE: Final = "/proc/1/ns/mnt"
HOST_ROOT: Final = "/proc/1/root"

_libc = ctypes.CDLL(None, use_errno=True)

Result = tuple[int, int]
"""Result of a system call, and errno."""


def _here(call: Callable[[], Result]) -> Result:
    return call()


class RegionMounts:
    def __init__(self, run: Callable[[Callable[[], Result]], Result] = _here) -> None:
        """`run` makes a call in the intended namespace."""
        self._run = run

    def mount(self, directory: Path, options: str, flags: int) -> None:
        """Mount an empty tmpfs over a directory. Raises OSError."""
        target, data = os.fsencode(directory), options.encode()
        done, number = self._run(
            lambda: (_libc.mount(b"sluice", target, b"tmpfs", flags, data), ctypes.get_errno())
        )
        if done != 0:
            raise OSError(number, f"mount tmpfs on {directory}: {os.strerror(number)}")

    def unmount(self, directory: Path) -> bool:
        """Detach the topmost mount; False if there is none."""
        target, flags = os.fsencode(directory), MNT_DETACH | UMOUNT_NOFOLLOW
        return self._run(lambda: (_libc.umount2(target, flags), 0))[0] == 0

    def refusal(self, root: Path) -> str | None:
        """Reason why a tmpfs cannot be mounted below `root` and seen there by this process; None if
        it can. Leaves nothing behind."""
        probe = root / f".mount-probe-{os.getpid()}"
        try:
            probe.mkdir(mode=0o700)
        except OSError as error:
            return str(error)
        try:
            before = probe.stat().st_dev
            self.mount(probe, "size=4k", MS_NOSUID)
            seen = probe.stat().st_dev != before
            self.unmount(probe)
            return None if seen else "the host's mounts do not propagate into this namespace"
        except OSError as error:
            return os.strerror(error.errno or 0)
        finally:
            probe.rmdir()


def region_mounts(root: Path) -> RegionMounts:
    """Mounts in the host's namespace if that is another one and has the same directory `root`;
    otherwise in our own. Never raises."""
    try:
        ours, theirs = os.stat("/proc/self/ns/mnt"), os.stat(HOST_NAMESPACE)
        if (ours.st_dev, ours.st_ino) == (theirs.st_dev, theirs.st_ino):
            return RegionMounts()
        here, there = root.stat(), os.stat(f"{HOST_ROOT}{root}")
        if (here.st_dev, here.st_ino) != (there.st_dev, there.st_ino):
            return RegionMounts()
        worker = _host_worker()
    except OSError:
        return RegionMounts()
    return RegionMounts(lambda call: worker.submit(call).result())


@cache
def _host_worker() -> ThreadPoolExecutor:
    """The one thread of this process in the host's namespace. Raises OSError if it may not enter
    it."""
    worker = ThreadPoolExecutor(1, "host-mounts")
    worker.submit(_enter_host).result()
    return worker


def _enter_host() -> None:
    """Move this thread only: from here on its root and working directory are its own."""
    namespace = os.open(HOST_NAMESPACE, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for done in (_libc.unshare(CLONE_FS), _libc.setns(namespace, CLONE_NEWNS)):
            if done != 0:
                raise OSError(ctypes.get_errno(), "the host's mount namespace")
    finally:
        os.close(namespace)

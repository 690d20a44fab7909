"""Where the tmpfs of a grant is mounted: in the host's mount namespace, whatever ours is.

A unit with ProtectSystem=, PrivateTmp= and the like runs in a mount namespace of its own, as does a
container: what it mounts there no job would ever see. So one thread of ours lives in the namespace
of pid 1 and does the mounts; the kernel shows them to us, too, because ours is a slave of it.
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
"""What a system call returned, and errno."""


def _here(call: Callable[[], Result]) -> Result:
    return call()


class RegionMounts:
    def __init__(self, run: Callable[[Callable[[], Result]], Result] = _here) -> None:
        """`run` does a call in the namespace that is meant."""
        self._run = run

    def mount(self, directory: Path, options: str, flags: int) -> None:
        """An empty tmpfs over a directory. Raises OSError."""
        target, data = os.fsencode(directory), options.encode()
        done, number = self._run(
            lambda: (_libc.mount(b"sluice", target, b"tmpfs", flags, data), ctypes.get_errno())
        )
        if done != 0:
            raise OSError(number, f"mount tmpfs on {directory}: {os.strerror(number)}")

    def unmount(self, directory: Path) -> bool:
        """Take the topmost mount away; False when there is none."""
        target, flags = os.fsencode(directory), MNT_DETACH | UMOUNT_NOFOLLOW
        return self._run(lambda: (_libc.umount2(target, flags), 0))[0] == 0

    def refusal(self, root: Path) -> str | None:
        """None when a tmpfs can be mounted below `root`, and be seen there by us, else why not.
        Leaves nothing behind."""
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
            return None if seen else "mounts of the host do not come into this namespace"
        except OSError as error:
            return os.strerror(error.errno or 0)
        finally:
            probe.rmdir()


def region_mounts(root: Path) -> RegionMounts:
    """In the host's namespace where that is another one and has the same directory `root`; in our
    own otherwise. Never raises."""
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
    """One for the process. Raises OSError when it may not go there."""
    worker = ThreadPoolExecutor(1, "host-mounts")
    worker.submit(_enter_host).result()
    return worker


def _enter_host() -> None:
    """This thread alone: its idea of root and working directory is its own from here on."""
    namespace = os.open(HOST_NAMESPACE, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for done in (_libc.unshare(CLONE_FS), _libc.setns(namespace, CLONE_NEWNS)):
            if done != 0:
                raise OSError(ctypes.get_errno(), "the host's mount namespace")
    finally:
        os.close(namespace)

"""Hot-plug and driver changes of GPUs from the kernel's uevents, through a child process that
receives them with pyroute2; see `uevents_child` and docs/decisions/node/0007-uevents.md.

The child starts some seconds after the daemon. What changed before it listened is found by reading
sysfs once more.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from nodeagent.adapters.host.children import python_child
from nodeagent.ports.watch import DeviceChange
from sluicecommon.plain import read_plain

log = logging.getLogger(__name__)

CHILD: Final = "nodeagent.adapters.nvml.uevents_child"
DELAY_S: Final = 10.0
"""Time from the daemon's start to the child's, which takes 0.3 s of CPU time and more. A daemon
that ends earlier, as in a test or after a mistake in its settings, does without."""
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
SETTLED_S: Final = 60.0
"""Run time of a child, s, after which the pause before its restart is the shortest again."""
KILL_TIMEOUT_S: Final = 1.0
SYSFS: Final = Path("/sys")
_DISPLAY: Final = ("0x0300", "0x0302")
"""Class of a VGA and of a 3D controller, without the programming interface."""
_MODULES: Final = ("nvidia", "nvidia_uvm")


def gpu_devices(sysfs: Path) -> frozenset[tuple[str, ...]]:
    """The GPUs on the PCI bus with their drivers, and the driver's modules.

    What was removed and added again, or unbound and bound again, has another inode in sysfs.
    """
    found: set[tuple[str, ...]] = set()
    pci = sysfs / "bus" / "pci" / "devices"
    with contextlib.suppress(OSError):
        for name in os.listdir(pci):
            with contextlib.suppress(OSError):
                if (pci / name / "class").read_text().startswith(_DISPLAY):
                    found.add((name, _entry(pci / name), _entry(pci / name / "driver")))
    for name in _MODULES:
        found.add((name, _entry(sysfs / "module" / name)))
    return frozenset(found)


def _entry(path: Path) -> str:
    """Inode of a directory or link in sysfs, and where the link leads; empty if there is none."""
    try:
        inode = os.lstat(path).st_ino
        return f"{inode} {os.readlink(path)}" if path.is_symlink() else str(inode)
    except OSError:
        return ""


class Uevents:
    """An endpoint of the daemon: reports changes of GPUs while it is open.

    Where uevents cannot be received there are no reports, and the daemon works without them.
    """

    def __init__(self, report: Callable[[DeviceChange], None], sysfs: Path = SYSFS) -> None:
        """Made before NVML is first read, since it remembers what changes are counted from."""
        self._report = report
        self._sysfs = sysfs
        self._first = gpu_devices(sysfs)
        self._supervisor: asyncio.Task[None] | None = None
        self._missed = False
        """True once a child has listened: a later one has to report what happened in between."""
        self.lost_total = 0
        """Times that events may have been dropped, after which anything may have changed."""

    async def start(self) -> None:
        """Start the child after a delay. Returns at once."""
        self._supervisor = asyncio.create_task(self._supervise())

    async def close(self) -> None:
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is not None:
            supervisor.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await supervisor

    async def _supervise(self) -> None:
        """Start the child again with growing pauses whenever it ends, unless it cannot listen."""
        loop, pause_s = asyncio.get_running_loop(), FIRST_PAUSE_S
        await asyncio.sleep(DELAY_S)
        while True:
            began_s = loop.time()
            try:
                ended = await self._run_child()
            except OSError as error:
                ended = f"cannot be started: {error}"
            if ended is None:
                return
            if loop.time() - began_s > SETTLED_S:
                pause_s = FIRST_PAUSE_S
            log.warning("uevents: the receiver %s; restarting it in %g s", ended, pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(LONGEST_PAUSE_S, pause_s * 2)

    async def _run_child(self) -> str | None:
        """One child, from its start to its end. Returns how it ended; None if it cannot listen."""
        child = await asyncio.create_subprocess_exec(
            *python_child(CHILD), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        assert child.stdout is not None
        try:
            async for line in child.stdout:
                message = json.loads(line)
                if "failed" in message:
                    log.warning("cannot listen for uevents: %s", message["failed"])
                    return None
                self._take(message)
            return f"ended with status {await child.wait()}"
        except (ValueError, TypeError, LookupError) as error:
            return f"wrote a line that cannot be read: {error}"
        finally:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(KILL_TIMEOUT_S):
                    await child.communicate(b"")  # Closes the pipes as well.

    def _take(self, message: dict[str, object]) -> None:
        """Handle one line of the child."""
        if "change" in message:
            self._report(read_plain(DeviceChange, message["change"]))
        elif "lost" in message:
            self._lost(str(message["lost"]))
        elif message["listening"]:
            if self._missed:
                self._lost("the receiver was started again")
            elif gpu_devices(self._sysfs) != self._first:
                self._lost("GPUs or their driver changed before the receiver listened")
            self._missed = True

    def _lost(self, reason: str) -> None:
        self.lost_total += 1
        log.warning("uevents were lost: %s", reason)
        self._report(DeviceChange("lost", "", "", ""))

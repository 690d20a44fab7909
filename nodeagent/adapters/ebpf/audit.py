"""Short audits of the real driver: uprobes at its launch entry points, compared with the probes of
our own library in the same window, and a check of the code under the probes.

A uprobe on code that is not a nop costs a trap, 1 to 12 us per launch, so the windows are short and
rare. The cost of a probe on this machine is measured at the start; a window ends early when the
busiest process has lost as much time as it may.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import time
from collections.abc import Iterable
from collections.abc import Mapping as MappingOf
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from nodeagent.adapters.ebpf.kernel import Kernel, close_all
from nodeagent.adapters.ebpf.libraries import LAUNCHERS, Mapping
from nodeagent.adapters.host import elf

SAFETY: Final = 0.8
"""Part of the budget after which a window ends; the rest covers attaching and the last slice."""
SLICE_S: Final = 0.01
"""Seconds between two checks in a window; at 10^6 launches a second a slice costs 1 % of 1 s."""
CALIBRATION_CALLS: Final = 500
OTHER_AT: Final = 16
_CODE: Final = {
    "x86_64": (b"\x0f\x1f\x44\x00\x00", b"\x31\xc0", b"\xc3"),
    "aarch64": (b"\x1f\x20\x03\xd5", b"\x00\x00\x80\xd2", b"\xc0\x03\x5f\xd6"),
}
"""Machine code by architecture: the probe's nop; `xor eax, eax` (`mov x0, #0`), which is not a nop,
push or branch; return."""
CODE_BYTES: Final = 5
BREAKPOINTS: Final = (b"\xcc", b"\xe8")
"""x86: int3, or the call that Linux 6.18 puts in the place of a five-byte nop."""
ARM_BREAKPOINT: Final = b"\x05\x00\x20\xd4"
"""brk #5, the kernel's own for uprobes; little-endian."""


class WrongProbes(Exception):
    """The library's probes differ from those of this version."""


ARGUMENTS: Final = {
    "x86_64": "8@(%r11) 4@24(%r11) 8@8(%r11) 8@16(%r11)",
    "aarch64": "8@[x9] 4@[x9, 24] 8@[x9, 8] 8@[x9, 16]",
}
"""The arguments of interpose/compute/probe.h; another text belongs to another version of
proto/launch_event.h."""


@dataclass(slots=True)
class Attached:
    """Probes attached to one library; closing them takes milliseconds."""

    symbols: dict[int, str]
    """Names of symbols by their offset in the file."""
    fds: list[int] = field(default_factory=list)

    def close(self) -> None:
        close_all(self.fds)


def attach_shim(kernel: Kernel, programs: MappingOf[str, int], path: str) -> Attached:
    """Attach probes to every `sluice:launch` and `sluice:copy`. Raises WrongProbes, elf.NotElf,
    OSError."""
    places = []
    for probe in elf.probes(Path(path)):
        if probe.provider != "sluice":
            continue
        if probe.arguments not in ARGUMENTS.values():
            raise WrongProbes(
                f"{path}: probe {probe.name} has the arguments {probe.arguments!r}: it belongs to"
                " another version of Sluice; restart the process to trace it"
            )
        places.append((f"see_{probe.name}", probe.offset, f"sluice:{probe.name}"))
    if not places:
        raise WrongProbes(f"{path} has no probes")
    return _attach(kernel, programs, path, places)


def attach_driver(kernel: Kernel, programs: MappingOf[str, int], path: str) -> Attached:
    """Attach probes to every launch entry point, once per offset, because several names may have
    one. Raises elf.NotElf, OSError."""
    symbols = {offset: name for name, offset in elf.functions(Path(path), LAUNCHERS).items()}
    places = [("see_driver_launch", offset, name) for offset, name in sorted(symbols.items())]
    return _attach(kernel, programs, path, places)


def _attach(
    kernel: Kernel, programs: MappingOf[str, int], path: str, places: list[tuple[str, int, str]]
) -> Attached:
    done = Attached({offset: symbol for _, offset, symbol in places})
    try:
        for program, offset, _ in places:
            done.fds.append(kernel.attach_uprobe(programs[program], path, offset))
    except OSError:
        done.close()
        raise
    return done


def code_at(mapping: Mapping, offset: int) -> bytes | None:
    """The bytes that a process has at an offset of the library; None if it has not mapped it there
    or has ended."""
    if not mapping.offset <= offset < mapping.offset + mapping.length:
        return None
    try:
        with open(f"/proc/{mapping.pid}/mem", "rb", buffering=0) as memory:
            memory.seek(mapping.start + offset - mapping.offset)
            return memory.read(CODE_BYTES)
    except (OSError, ValueError):
        return None


def altered(original: bytes, found: bytes) -> str | None:
    """The change of the code under an attached probe: restored or patched; None if there is
    none."""
    if found.startswith((*BREAKPOINTS, ARM_BREAKPOINT)):
        return None
    return "restored" if found == original else "patched"


def originals(path: str, offsets: Iterable[int]) -> dict[int, bytes]:
    """The file's own code. Raises OSError."""
    with open(path, "rb") as file:
        found = {}
        for offset in offsets:
            file.seek(offset)
            found[offset] = file.read(CODE_BYTES)
        return found


@dataclass(frozen=True, slots=True)
class Costs:
    """The cost of one probe on this machine."""

    trap_ns: int
    """Nanoseconds at an instruction that the kernel has to step over, as the driver's code is
    assumed to be."""
    nop_ns: int
    """Nanoseconds at a nop of ours, proto/launch_event.h."""


def calibrate(kernel: Kernel, program_fd: int) -> Costs:
    """Measure the costs at two functions of two instructions in a temporary file that no other
    process maps. Raises OSError, and KeyError on an unknown architecture."""
    nop, other, back = _CODE[platform.machine()]
    fd = os.memfd_create("sluice-calibration", os.MFD_CLOEXEC)
    try:
        os.write(fd, (nop + back).ljust(OTHER_AT, b"\0") + other + back)
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        address = libc.mmap(
            None,
            ctypes.c_size_t(mmap.PAGESIZE),
            mmap.PROT_READ | mmap.PROT_EXEC,
            mmap.MAP_PRIVATE,
            fd,
            ctypes.c_long(0),
        )
        if address in (None, ctypes.c_void_p(-1).value):
            raise OSError(ctypes.get_errno(), "code for calibration cannot be mapped")
        path = f"/proc/self/fd/{fd}"
        try:
            return Costs(
                trap_ns=_probe_ns(kernel, program_fd, path, address, OTHER_AT),
                nop_ns=_probe_ns(kernel, program_fd, path, address, 0),
            )
        finally:
            libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(mmap.PAGESIZE))
    finally:
        os.close(fd)


def _probe_ns(kernel: Kernel, program_fd: int, path: str, address: int, offset: int) -> int:
    call = ctypes.CFUNCTYPE(None)(address + offset)

    def loop_ns() -> int:
        began = time.thread_time_ns()
        for _ in range(CALIBRATION_CALLS):
            call()
        return time.thread_time_ns() - began

    bare = min(loop_ns() for _ in range(3))
    fd = kernel.attach_uprobe(program_fd, path, offset)
    try:
        probed = min(loop_ns() for _ in range(3))
    finally:
        os.close(fd)
    return max(50, (probed - bare) // CALIBRATION_CALLS)


@dataclass(frozen=True, slots=True)
class Budget:
    """Decides when a window ends: after its length, or when the busiest process has lost all that
    it may lose in an interval. No rate has to be known in advance."""

    interval_s: float
    window_s: float
    ratio: float
    costs: Costs

    def cost_ratio(self, passed_s: float, driver: int, shim: int) -> float:
        """Part of a whole interval that so many launches of both kinds cost one process; it is at
        most the window, however many threads launched."""
        lost_s = (driver * self.costs.trap_ns + shim * self.costs.nop_ns) / 1e9
        return min(lost_s, passed_s) / self.interval_s

    @property
    def slice_s(self) -> float:
        """Seconds between two checks of a window, which is short compared with the time that may be
        lost."""
        return min(SLICE_S, self.window_s, 0.1 * self.ratio * self.interval_s)

    def ends(self, passed_s: float, cost_ratio: float) -> bool:
        """True if the window has to end. `cost_ratio` is that of the process that has lost most."""
        return passed_s >= self.window_s or cost_ratio >= SAFETY * self.ratio

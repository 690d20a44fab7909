"""The program of each library in `make test-clients`: see how much memory the GPU has, take 1 GiB
at a time until the library refuses, give all back and take one again, then keep the GPU busy.
Prints one JSON object.

Runs in the clients' own virtual environment and imports nothing of Sluice.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any, Protocol

GIB = 2**30
KERNEL_NS = 2_000_000
BLOCKS_2MS = 199 * 132 * (2048 // 256)
"""A kernel of 256 threads whose name says no duration takes 2 us and 10 us for each wave of its blocks over an H100's SMs;
199 waves are near 2 ms. OTHER_NS is what it takes exactly."""
OTHER_NS = 2_000 + 199 * 10_000


class Library(Protocol):
    kernel_ns: int
    refusal: type[BaseException]
    """Exception that the library raises when the driver has no memory."""

    def memory(self) -> tuple[int, int]:
        """(free, total) bytes."""

    def take(self, size: int) -> Any: ...
    def give(self, memory: Any) -> None: ...
    def launch(self) -> None: ...
    def wait(self) -> None: ...


def run(library: Library) -> None:
    seconds = float(sys.argv[1])
    free_bytes, total_bytes = library.memory()
    held: list[Any] = []
    refused = ""
    while len(held) < 200:
        try:
            held.append(library.take(GIB))
        except library.refusal as error:
            refused = f"{type(error).__name__}: {error}"
            break
    most = len(held)
    while held:
        library.give(held.pop())
    library.wait()
    again = library.take(GIB)
    library.give(again)

    end = time.monotonic() + 1
    while time.monotonic() < end:
        library.launch()
    library.wait()
    began, launches = time.monotonic(), 0
    while time.monotonic() < began + seconds:
        library.launch()
        launches += 1
    library.wait()
    wall_s = time.monotonic() - began
    print(
        json.dumps(
            {
                "total_bytes": total_bytes,
                "free_bytes": free_bytes,
                "held_gib": most,
                "refused": refused[:200],
                "recovered": True,
                "share_ratio": launches * library.kernel_ns / 1e9 / wall_s,
            }
        ),
        flush=True,
    )

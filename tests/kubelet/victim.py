"""A daemon's kubelet side in a process of its own, to be killed: `python -m tests.kubelet.victim DIR GPUS SLOTS`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from nodeagent.adapters.host.clock import SystemClock
from tests.kubelet.place import Daemon, Place


async def serve(directory: Path, gpus: int, slots: int) -> None:
    place = Place(directory, gpus, slots)
    place.clock = SystemClock()  # type: ignore[assignment]
    await Daemon(place).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))

"""A daemon's kubelet side in a process of its own, to be killed: `python -m tests.kubelet.victim DIR GPUS SLOTS`.

SIGUSR1 makes it write the stacks of its threads to stderr, SIGUSR2 those of its tasks."""

from __future__ import annotations

import asyncio
import faulthandler
import signal
import sys
from pathlib import Path

from nodeagent.adapters.host.clock import SystemClock
from tests.kubelet.place import Daemon, Place


def write_tasks() -> None:
    for task in asyncio.all_tasks():
        task.print_stack(file=sys.stderr)


async def serve(directory: Path, gpus: int, slots: int) -> None:
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, write_tasks)
    place = Place(directory, gpus, slots)
    place.clock = SystemClock()  # type: ignore[assignment]
    await Daemon(place).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    faulthandler.register(signal.SIGUSR1)
    asyncio.run(serve(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))

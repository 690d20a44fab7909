"""Writes rows as the daemon (`ledger`) or the queue controller (`queue`) does, and says each number once it is durable.

`python -m tests.faults.programs.writer ledger|queue FILE`, from the number after the last it finds.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from nodeagent.adapters.ledger.sqlite import SqliteLedger
from nodeagent.ports.watch import Hold
from queuecontroller.server.store.sqlite import SqliteStore
from queuecontroller.state.records import Change, Event

HOLD = Hold(
    0, 5.0, "freeze", "7:70", "unregistered_gpu_user", "", "contain", "{}", "g1", 7, 70, 1000, "/x",
    "", "", "", "", "", 0, 0, ((7, 70), (8, 80)),
)  # fmt: skip
BOOT = "boot"


def ledger(path: Path) -> None:
    opened = SqliteLedger(path, BOOT)
    print("begin", flush=True)
    while True:
        written = opened.store_hold(replace(HOLD, pid=1))
        if written.number % 5 == 0:  # and rows that go, so that pages are used again
            opened.drop_hold(written.number)
            continue
        print(written.number, flush=True)


def queue(path: Path) -> None:
    store = SqliteStore(path)
    found = store.load()
    print("begin", flush=True)
    number = found.revision
    while True:
        number += 1
        line = Event(number, 0, "Submitted", "Workload/a/b", "x" * (number % 300))
        store.commit(Change("submit", number, found.term, events=[line]))
        print(number, flush=True)


if __name__ == "__main__":
    {"ledger": ledger, "queue": queue}[sys.argv[1]](Path(sys.argv[2]))

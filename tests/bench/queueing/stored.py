"""A database of the queue controller with many workloads in it, made without a server."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

from queuecontroller.server import standalone
from queuecontroller.server.config import Settings
from queuecontroller.server.store.sqlite import SqliteStore
from queuecontroller.state.objects.submission import Submission
from queuecontroller.state.records import GpuAsk
from sluicecommon.sd_notify import SdNotify
from tests.kit.queue import queues
from tests.queue.state.world import TEAMS, documents

GIB = 1 << 30
TOGETHER = 1000

QUEUES = queues.manifests(
    TEAMS.replace("nominalQuota: 2", "nominalQuota: 100000"),
    queues.cluster_queue("waits", "gpus", {queues.GPU: 0}),
    queues.local_queue("waits", "team-a", "waits"),
)
"""Room for all that start, and a queue in which all others wait."""


def store(path: Path, pending: int, finished: int) -> None:
    """`pending` that wait for ever, and `finished` that are kept to be looked at."""
    database = SqliteStore(path)
    database._db.execute("PRAGMA synchronous = OFF")  # made once, for a benchmark
    shell = standalone.take_over(Settings(), database, SdNotify(None))
    book, now_ns = shell.book, time.time_ns()
    shell.step("apply", lambda book, now: book.apply(documents(QUEUES), False, now))
    numbers = itertools.count()
    ask = GpuAsk(1, memory_bytes=GIB, share_ppm=10_000)
    for _ in range(pending + finished):
        number = next(numbers)
        asked = Submission(
            "team-a", "waits", ask, user=f"user-{number % 50}", command="python train.py"
        )
        record = book.submit(asked, now_ns + number)
        if number < finished:
            book.workloads.finish(record.key, "JobFinished", "done", now_ns + number)
        if number % TOGETHER == 0:
            shell.writer.note("submit")
            shell.writer.flush()
    shell.writer.note("submit")
    shell.writer.flush()
    database._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database.close()

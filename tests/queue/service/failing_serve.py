"""`sluice-queue serve` that kills itself with SIGKILL at one step: SLUICE_QUEUE_FAILPOINT=LABEL:before|after.

LABEL is that of a transaction (see `Change.label`). `before`: nothing of it is on the disk; `after`: it is on the disk
and nobody has heard of it. Only transactions that change something count.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

from queuecontroller import serving
from queuecontroller.adapters.store_sqlite import SqliteStore
from queuecontroller.cli import serve
from queuecontroller.records import Change, Store


class FailingStore(SqliteStore):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._label, _, self._when = os.environ.get("SLUICE_QUEUE_FAILPOINT", "").partition(":")

    def commit(self, change: Change) -> None:
        mine = change.label == self._label and (
            change.workloads or change.assignments or change.nodes
        )
        if mine and self._when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        super().commit(change)
        if mine and self._when == "after":
            os.kill(os.getpid(), signal.SIGKILL)


def open_store(path: Path) -> Store:
    return FailingStore(path)


def main() -> int:
    parser = argparse.ArgumentParser()
    serve.configure(parser)
    options = parser.parse_args()
    overrides, problems = serve._overrides(options)
    assert not problems, problems
    settings = serving.load_settings(options.config, overrides)
    return serving.serve(settings, dict(os.environ), open_store)


if __name__ == "__main__":
    sys.exit(main())

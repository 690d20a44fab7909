"""`sluice-queue serve` that kills itself with SIGKILL at one step: SLUICE_QUEUE_FAILPOINT=LABEL:before|staged|after.

LABEL is one of a transaction's (see `Change.label`). `before`: nothing of it is on the disk; `staged`: its rows were
handed over and not committed; `after`: it is on the disk and was not answered. Only transactions that change something count.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

from queuecontroller.cli.commands import serve
from queuecontroller.server import standalone
from queuecontroller.server.store.sqlite import SqliteStore
from queuecontroller.state.records import Change, Store


class FailingStore(SqliteStore):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._label, _, self._when = os.environ.get("SLUICE_QUEUE_FAILPOINT", "").partition(":")
        self._mine = False

    def stage(self, change: Change) -> None:
        self._mine = self._label in change.label.split("+") and bool(
            change.workloads or change.assignments or change.nodes
        )
        self._stop("before")
        super().stage(change)
        self._stop("staged")

    def sync(self) -> None:
        super().sync()
        self._stop("after")

    def _stop(self, when: str) -> None:
        if self._mine and self._when == when:
            os.kill(os.getpid(), signal.SIGKILL)


def open_store(path: Path) -> Store:
    return FailingStore(path)


def main() -> int:
    parser = argparse.ArgumentParser()
    serve.configure(parser)
    options = parser.parse_args()
    overrides, problems = serve._overrides(options)
    assert not problems, problems
    settings = standalone.load_settings(options.config, overrides)
    return standalone.serve(settings, dict(os.environ), open_store)


if __name__ == "__main__":
    sys.exit(main())

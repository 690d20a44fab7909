"""How long an honest user's submit takes beside 33 hostile peers of each kind; the promise is 100 ms for 99 of 100."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from tests.bench.entries import Entry, entry, quantile
from tests.kit.node import until
from tests.queue.server.beside_hostile import KINDS, PEERS, certificates, hostile, submits
from tests.queue.server.callers import Callers, callers
from tests.queue.state.world import TEAMS

MAX_S = 0.1
CONNECTIONS = "sluice_queue_connections"
BEGUN_S = 2.0
"""After their handshakes: until each has as many calls in flight as it may."""


def run(quick: bool) -> list[Entry]:
    count = 100 if quick else 400
    with tempfile.TemporaryDirectory() as directory, callers(Path(directory)) as service:
        service.controller.apply(TEAMS)
        alone = submits(service, count)
        found = [_entry("honest submit, alone", alone, alone)]
        for kind in KINDS:
            name = f"honest submit beside {PEERS} {kind.replace('_', ' ')} peers"
            found.append(_entry(name, _beside(service, kind, count), alone))
    return found


def _beside(service: Callers, kind: str, count: int) -> list[float]:
    with hostile(service, kind, certificates(service, kind)):
        if kind != "silent":  # those are never proven, so never more than a few
            until("all of them are there", lambda: service.controller.metric(CONNECTIONS) >= PEERS)
            time.sleep(BEGUN_S)
        return submits(service, count)


def _entry(name: str, took: list[float], alone: list[float]) -> Entry:
    p99, before = quantile(took, 0.99), quantile(alone, 0.99)
    return entry(
        f"{name}, p99",
        "s",
        took,
        value=p99,
        baseline=before,
        ratio=p99 / before,
        target=f"at most {MAX_S} s",
    )

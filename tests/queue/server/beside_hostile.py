"""Honest callers beside 33 who are not."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator

from tests.kit.places import REPO
from tests.queue.server.callers import Callers, message
from tests.queue.server.certificates import Pair

PEERS = 33
KINDS = ("silent", "flooding", "lying_node", "lying_user")
LONGEST_S = 20.0
"""Limit for any honest call."""


@contextlib.contextmanager
def hostile(service: Callers, kind: str, pairs: list[Pair]) -> Iterator[None]:
    process = subprocess.Popen(
        [
            *(
                sys.executable,
                "-m",
                "tests.queue.server.hostile",
                kind,
                service.controller.tcp_address,
            ),
            *(service.authority.ca, pairs[0].key, *(pair.certificate for pair in pairs)),
        ],
        cwd=REPO,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield
    finally:
        process.kill()
        process.wait()


def certificates(service: Callers, kind: str) -> list[Pair]:
    role = "node" if kind == "lying_node" else "user"
    key = service.authority.issue(f"key-{kind}", "DNS:key")
    names = {f"{kind}-{i}": f"URI:sluice:{role}:liar-{i}" for i in range(PEERS)}
    return list(service.authority.sign_many(key, names).values())


def submits(service: Callers, count: int) -> list[float]:
    """Seconds each honest submit took. Every one must be accepted."""
    ann = service.party("ann", "user:ann")
    took = []
    for number in range(count):
        name = f"honest-{number}"
        ask = message("GpuAsk", gpus=1, memory_ppm=1000, share_ppm=1000)
        request = message("SubmitRequest", namespace="team-a", queue="q", name=name, ask=ask)
        began = time.monotonic()
        status, answer = ann.call("Queues/Submit", request, LONGEST_S)
        took.append(time.monotonic() - began)
        assert status == "OK", answer
    for number in range(count):
        found = message("ObjectRef", kind="Workload", namespace="team-a", name=f"honest-{number}")
        assert ann.call("Queues/Delete", found, LONGEST_S)[0] == "OK"
    return took

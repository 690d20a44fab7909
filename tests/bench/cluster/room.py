"""An API server with the queue in front of it, as a user would have it: etcd waits for the disk, webhooks are asked."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.cluster.control_plane import ControlPlane
from tests.cluster.queueing import (
    JOBS,
    Replica,
    apply,
    asked,
    condition,
    door,
    of_kueue,
    quota,
    workload_of,
)
from tests.kit.node import until
from tests.kit.places import REPO

LEASE_S = 15.0
"""The default: with a shorter one a busy machine would lose it."""
EVENTS = "/api/v1/namespaces/default/events"


@contextmanager
def plane() -> Iterator[tuple[ControlPlane, Path]]:
    """A control plane, with a directory for the files beside it."""
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as name:
        place = Path(name)
        (place / "queue").mkdir()
        # An identity that no fairness holds back, as a controller of the system has it.
        with ControlPlane(place / "plane", durable=True) as made:
            yield made, place / "queue"


@contextmanager
def deciding(made: ControlPlane, place: Path, *settings: str) -> Iterator[Replica]:
    with asked(made, place, f"kubernetes.leader_lease_s={LEASE_S:g}", *settings) as replica:
        yield replica


def queues(made: ControlPlane, waits: int = 0) -> None:
    """One with room for all, and one with as much room as is said."""
    flavor = of_kueue("ResourceFlavor", "plain", {})
    every = (
        quota("all", 1_000_000),
        door("all", "all"),
        quota("waits", waits),
        door("waits", "waits"),
    )
    apply(made, flavor, *every)


def load(made: ControlPlane, kind: str, *more: object) -> dict[str, Any]:
    words = ["tests.bench.cluster.load", str(made.kubeconfig), kind, *map(str, more)]
    out = subprocess.run(
        [sys.executable, "-m", *words], cwd=REPO, check=True, stdout=subprocess.PIPE, text=True
    )
    found: dict[str, Any] = json.loads(out.stdout)
    return found


def sample(made: ControlPlane, place: Path, name: str) -> Path:
    """Save the objects written for one admitted Job; a load without our controller writes the
    same."""
    workload = until("its Workload", lambda: workload_of(made, name), 30)
    assert condition(workload, "Admitted").get("status") == "True"

    def event() -> Any:
        path = f"{EVENTS}?fieldSelector=involvedObject.name={name}"
        return next(iter(made.api.get(path)["items"]), None)

    found = {
        "job": made.api.get(f"{JOBS}/{name}"),
        "workload": workload,
        "event": until("its event", event, 30),
    }
    path = place / "sample.json"
    path.write_text(json.dumps(found))
    return path

"""Scene I: an inference server's way with memory: it measures what is free, takes nine tenths of it for its cache, and
gives it back and takes it again while it sleeps and wakes. Servers refuse to start when free memory grows meanwhile."""

from __future__ import annotations

import functools
from typing import Any

from tests.gpu.play import play
from tests.gpu.stage import WAYS, Stage

GIB = 2**30
NAPS = 3


def _tell(stage: Stage, name: str, told: dict[str, Any]) -> None:
    grown = told["free_after_bytes"] - told["free_before_bytes"]
    stage.report.facts[name] = told
    stage.report.row(
        f"{name}: free memory while it measures",
        "does not grow",
        f"{grown / GIB:+.3f} GiB",
        grown <= 0,
    )
    stage.report.row(
        f"{name}: its cache",
        f"{told['wanted_bytes'] / GIB:.2f} GiB, and after {NAPS} naps",
        f"{told['held_bytes'] / GIB:.2f} GiB, {told['woke']} naps",
        told["held_bytes"] == told["wanted_bytes"] and told["woke"] == NAPS,
    )


def serve(stage: Stage, name: str, more: tuple[str, ...]) -> None:
    """A neighbour gives its memory back meanwhile."""
    neighbour = stage.granted("neighbour", WAYS, "driver", cores=20, gpumem="6Gi")
    job = stage.granted("server", WAYS, "kv", cores=60, gpumem="20Gi", more=more)
    assert neighbour.process.stdout is not None
    neighbour.process.stdout.readline()
    neighbour.kill()
    _tell(stage, name, job.result(60))


def run(stage: Stage) -> None:
    play(
        stage.report,
        {
            "a fixed grant": functools.partial(serve, stage, "a fixed grant", ()),
            "memory lent": functools.partial(
                serve, stage, "memory lent", ("--gpumem-request", "10Gi")
            ),
        },
    )

"""Scene M: ways of starting that programs have: a GPU named by its UUID, several processes of one grant."""

from __future__ import annotations

import json

from tests.gpu.play import play
from tests.gpu.stage import JOB, Stage, rate
from tests.kit.places import TENANT


def by_uuid(stage: Stage) -> None:
    uuid = stage.started().info()["gpus"][0]["uuid"]
    got = stage.granted(
        "by-uuid", TENANT, "--launches", "5", cores=50, env={"CUDA_VISIBLE_DEVICES": uuid}
    ).result(60)
    stage.report.row(
        "CUDA_VISIBLE_DEVICES by UUID",
        "5 launches, 4 GiB",
        f"{got['launches']} launches, {got['total_bytes'] / 2**30:.2f} GiB",
        got["launches"] == 5 and got["total_bytes"] == 4 * 2**30,
    )


def siblings(stage: Stage) -> None:
    """Two processes of a grant share its 50 %."""
    stage.started()
    alone = stage.alone(stage.per_ms)
    start = stage.start_ns(2)
    command = (
        f"{JOB} train --kernel-ns {stage.per_ms} --warm {stage.seconds(1)} --seconds {stage.seconds(2)}"
        f" --start-ns {start}"
    )
    job = stage.granted("siblings", "/bin/sh", "-c", f"{command} & {command}; wait", cores=50)
    out, _ = job.process.communicate(timeout=60)
    answers = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    both = [rate(answer) / alone for answer in answers]
    shown = " + ".join(f"{one:.1%}" for one in both)
    stage.report.row(
        "two processes of a grant of 50 %",
        "50 % ± 3 together",
        f"{shown} = {sum(both):.1%}",
        len(both) == 2 and abs(sum(both) - 0.5) <= 0.03,
    )


def run(stage: Stage) -> None:
    play(stage.report, {"by UUID": lambda: by_uuid(stage), "siblings": lambda: siblings(stage)})

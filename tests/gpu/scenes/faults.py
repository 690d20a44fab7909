"""Scene K: a holder of memory is killed, a program runs without a grant, a grant is resized while it works, the daemon is
killed under a tenant."""

from __future__ import annotations

import time

from tests.gpu.play import play
from tests.gpu.stage import JOB, Stage, rate
from tests.kit.node import NodeError, until
from tests.kit.places import TENANT

HELD = str(4 * 2**30)
BACK_S, TOLD_S = 1.0, 10.0


def killed_holder(stage: Stage) -> None:
    """Its memory is free for others again; on a card the driver itself takes up to a second for that."""
    node = stage.started()
    flags = ("--launches", "1", "--warm", "0", "--hold", HELD, "--idle", "60")
    job = stage.granted("holder", TENANT, *flags, cores=60, gpumem="60%")
    assert job.process.stdout is not None
    job.process.stdout.readline()
    began = time.monotonic()
    job.kill()
    until("the killed grant is gone", lambda: node.grant("holder") is None, 30)
    gone_s = time.monotonic() - began
    other = stage.granted("after", TENANT, *flags[:6], cores=60, gpumem="60%").result(60)
    stage.report.facts["killed_holder_s"] = gone_s
    stage.report.row(
        "quota of a holder that was killed",
        f"back within {BACK_S:g} s",
        f"{gone_s:.2f} s, the next one: error {other['hold_result']}",
        gone_s <= BACK_S and other["hold_result"] == 0,
    )


def without_a_grant(stage: Stage) -> None:
    node = stage.started()
    began = time.monotonic()
    job = stage.bare(TENANT, "--warm", "0", "--launches", "1", "--hold", HELD, "--idle", "60")

    def told() -> bool:
        events = node.cli("events", "--kind", "unregistered_gpu_user", check=False).stdout
        return str(job.process.pid) in events

    try:
        until("it is reported", told, TOLD_S)
        got = f"{time.monotonic() - began:.1f} s"
    except NodeError:
        got = "not reported"
    finally:
        frozen = job.process.poll() is not None
        job.kill()
    stage.report.row(
        "a program without a grant", f"reported within {TOLD_S:g} s, not ended", got,
        got != "not reported" and not frozen,
    )  # fmt: skip


def resized(stage: Stage) -> None:
    node, seconds = stage.started(), stage.seconds(1)
    arguments = ("train", *stage.work(stage.per_ms), "--warm", "0.3")
    shown = []
    job = stage.granted("resized", JOB, *arguments, "--seconds", "60", cores=20)
    until("it runs", lambda: (node.grant("resized") or {}).get("processes"), 30)
    for cores in (20, 60):
        node.cli("resize", "resized", "--cores", str(cores))
        time.sleep(1 + seconds)
        grant = node.grant("resized")
        assert grant is not None
        shown.append((cores, grant["devices"][0]["used_ratio"]))
    job.kill()
    for cores, used in shown:
        stage.report.row(
            f"resized to {cores} %: its own account",
            f"{cores} % ± 5",
            f"{used:.1%}",
            abs(used - cores / 100) <= 0.05,
        )


def daemon_killed(stage: Stage) -> None:
    node, seconds = stage.started(), stage.seconds(4)
    times = ("--warm", f"{stage.seconds(1)}", "--seconds", f"{seconds}")
    alone = stage.alone(stage.per_ms)
    job = stage.granted("through", JOB, "train", *stage.work(stage.per_ms), *times, cores=40)
    until("it runs", lambda: (node.grant("through") or {}).get("processes"), 30)
    time.sleep(seconds / 2)
    node.kill_daemon()
    time.sleep(seconds / 8)
    node.start()
    stage.report.share("40 % while the daemon is killed", 0.4, rate(job.result()) / alone)


def run(stage: Stage) -> None:
    play(
        stage.report,
        {
            "killed holder": lambda: killed_holder(stage),
            "without a grant": lambda: without_a_grant(stage),
            "resized": lambda: resized(stage),
            "daemon killed": lambda: daemon_killed(stage),
        },
    )

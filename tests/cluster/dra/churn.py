"""Pods with claims that come and go while kubelet, daemon and runtime are killed at random: what is left afterwards."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.cluster.dra import claims
from tests.cluster.lab import Lab
from tests.kit.node import until

VICTIMS = ("kubelet", "daemon", "containerd")
AT_ONCE = 4
BETWEEN_S = (6.0, 12.0)
"""Between two kills: each of the three takes some seconds to come back, and more on a busy machine."""
DEADLINE_S = 300.0


@dataclass
class Outcome:
    pairs: int = 0
    kills: dict[str, int] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    """Running pods whose program has no GPU, or another amount than its claim."""
    double: list[str] = field(default_factory=list)
    leaked: list[str] = field(default_factory=list)


def churn(
    lab: Lab, image: str, pairs: int, kill_daemon: Callable[[], None], seed: int = 0
) -> Outcome:
    """Each pod is prepared and given back once; a kill every few seconds."""
    chance, outcome = random.Random(seed), Outcome()
    lab.apply(claims.template("churn", memory="2000Mi", cores=5))
    over, broken = threading.Event(), []

    def kill() -> None:
        while not over.wait(chance.uniform(*BETWEEN_S)):
            victim = chance.choice(VICTIMS)
            try:
                if victim == "daemon":
                    kill_daemon()
                else:
                    lab.cluster.restart(victim, signal.SIGKILL)
            except Exception as error:
                broken.append(f"{victim}: {error!r}")
                return
            outcome.kills[victim] = outcome.kills.get(victim, 0) + 1

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        for first in range(0, pairs, AT_ONCE):
            names = [f"churn-{n}" for n in range(first, min(pairs, first + AT_ONCE))]
            _round(lab, image, names, outcome)
            outcome.pairs += len(names)
    finally:
        over.set()
        killer.join()
    assert not broken, broken
    until("the daemon answers", lab.reachable, 60)
    until("the kubelet answers", lab.cluster.kubelet_answers, 60)
    try:
        until("everything is given back", lambda: not lab.live(), 60)
    except Exception:
        outcome.leaked += [f"grant {name}" for name in lab.live().values()]
    left = "ls -d /run/cdi/sluice.dev-grant_* /var/run/cdi/sluice.dev-grant_* 2>/dev/null; true"
    outcome.leaked += lab.cluster.run("sh", "-c", left).stdout.split()
    return outcome


def _round(lab: Lab, image: str, names: Sequence[str], outcome: Outcome) -> None:
    for name in names:
        lab.create_pod(claims.pod(name, image, "churn", "sleep 3600", restart="Always"))
    for name in names:
        lab.wait_for(name, deadline_s=DEADLINE_S)
    until("the daemon answers", lab.reachable, 60)
    held = list(lab.live().values())
    for name in names:
        mine = [one for one in held if one.split("/")[1] == name]
        if len(mine) != 1:
            (outcome.double if mine else outcome.lost).append(f"{name}: {mine}")
    for name in names[:1]:  # by the program itself, as often as the runtime lets us in
        try:
            found = lab.inside(name)["total_mib"]
        except Exception:  # the runtime was killed under the exec
            continue
        if found != 2000:
            outcome.lost.append(f"{name}: {found} MiB")
    for name in names:
        lab.delete(name)
    time.sleep(0)

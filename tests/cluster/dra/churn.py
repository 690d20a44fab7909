"""Pods with many claims each that come and go while kubelet, daemon and runtime are killed at random: what is left afterwards.

The kubelet prepares every claim of a pod, whether a container names it or not, and all of a pod in one call; so a hundred pods
are a thousand pairs, and each call has claims beside each other.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from tests.cluster.api import path_of
from tests.cluster.dra import claims
from tests.cluster.lab import Lab
from tests.cluster.manifests import NAMESPACE
from tests.kit.node import NodeError, until

VICTIMS = ("kubelet", "daemon", "containerd")
AT_ONCE = 4
CLAIMS = 10
"""Claims per pod. Its container uses the first."""
SLOTS = AT_ONCE * CLAIMS // 2
"""Slots of each of the two GPUs, so that all pods that run at a time fit."""
FIRST_S = 2.0
BETWEEN_S = (6.0, 14.0)
"""Between two kills: each of the three takes some seconds to come back, and more on a busy machine."""
DEADLINE_S = 300.0
MEMORY_MIB, CORES = 2000, 5


@dataclass
class Outcome:
    pairs: int = 0
    """Claims that were prepared and unprepared again."""
    pods: int = 0
    seconds: float = 0.0
    kills: dict[str, int] = field(default_factory=dict)
    looked_inside: int = 0
    """Pods whose own program was asked what it has."""
    lost: list[str] = field(default_factory=list)
    """Claims of running pods without a grant, and programs with another amount than their claim."""
    double: list[str] = field(default_factory=list)
    """Claims with two grants, and GPUs with more promised than they have."""
    leaked: list[str] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        return {
            "claims_churned": self.pairs,
            "churn_pods": self.pods,
            "churn_s": round(self.seconds),
            "churn_kills": self.kills,
            "churn_looked_inside": self.looked_inside,
            "churn_lost": len(self.lost),
            "churn_double": len(self.double),
            "churn_leaked": len(self.leaked),
        }


class Churn:
    def __init__(
        self, lab: Lab, image: str, pairs: int, kill_daemon: Callable[[], None], seed: int
    ) -> None:
        self.outcome = Outcome()
        self._lab = lab
        self._image = image
        self._kill_daemon = kill_daemon
        self._seed = seed
        self._left = pairs
        self._lock = threading.Lock()
        self._over = threading.Event()

    def run(self) -> Outcome:
        """Each claim is prepared and given back once; a kill every few seconds. Goes on until each of the three was killed."""
        lab = self._lab
        lab.apply(claims.template("churn", memory=f"{MEMORY_MIB}Mi", cores=CORES))
        begin_s = time.monotonic()
        with ThreadPoolExecutor(AT_ONCE + 1) as pool:
            killing = pool.submit(self._kill)
            working = [pool.submit(self._work, number) for number in range(AT_ONCE)]
            try:
                for one in working:
                    one.result()
            finally:
                self._over.set()
            killing.result()
        self.outcome.seconds = time.monotonic() - begin_s
        until("the daemon answers", lab.reachable, 60)
        until("the kubelet answers", lab.cluster.kubelet_answers, 60)
        self._count_leaks()
        return self.outcome

    def _kill(self) -> None:
        chance = random.Random(self._seed)
        turn: list[str] = []
        while not self._over.wait(chance.uniform(*BETWEEN_S) if self.outcome.kills else FIRST_S):
            turn = turn or chance.sample(VICTIMS, len(VICTIMS))
            victim = turn.pop()
            if victim == "daemon":
                self._kill_daemon()
            else:
                self._lab.cluster.restart(victim, signal.SIGKILL)
            kills = self.outcome.kills
            kills[victim] = kills.get(victim, 0) + 1

    def _work(self, number: int) -> None:
        chance = random.Random(f"{self._seed}-{number}")
        made = 0
        while not self._over.is_set():
            with self._lock:
                count = min(CLAIMS, self._left)
                self._left -= count
            if not count and len(self.outcome.kills) == len(VICTIMS):
                return
            count = count or CLAIMS
            self._one(f"churn-{number}-{made}", count, chance)
            made += 1
            with self._lock:
                self.outcome.pairs += count
                self.outcome.pods += 1

    def _one(self, name: str, count: int, chance: random.Random) -> None:
        lab = self._lab
        more = ["churn"] * (count - 1)
        document = claims.pod(name, self._image, "churn", "exec sleep 3600", more, restart="Always")
        lab.create_pod(document)
        lab.wait_for(name, deadline_s=DEADLINE_S)
        self._check(name, claims.names_of(lab, name))
        if chance.random() < 0.25:
            self._look_inside(name)
        # By force it is gone from the API before its claims are given back: both ways happen.
        lab.api.delete(path_of("pods", NAMESPACE, name), chance.choice((0, 1)))
        until(f"{name} is gone", lambda: lab.pod(name) is None, DEADLINE_S)

    def _check(self, pod: str, names: Sequence[str]) -> None:
        """Compare the claims with the grants that the daemon lists as soon as it answers."""

        def held() -> Counter[str] | None:
            try:
                return Counter(self._lab.live().values())
            except OSError:
                return None

        found = until("the daemon answers", held, DEADLINE_S)
        for claim in names:
            times = found[f"{NAMESPACE}/{pod}/{claim}"]
            if times != 1:
                (self.outcome.double if times else self.outcome.lost).append(f"{claim}: {times}")
        try:
            self.outcome.double += [f"GPU {one['gpu']}" for one in self._lab.overfull()]
        except OSError:  # it was killed between the two looks
            return

    def _look_inside(self, name: str) -> None:
        try:
            found = self._lab.inside(name)["total_mib"]
        except Exception:  # the runtime or the kubelet was killed under the exec
            return
        self.outcome.looked_inside += 1
        if found != MEMORY_MIB:
            self.outcome.lost.append(f"{name}: {found} MiB")

    def _count_leaks(self) -> None:
        lab, leaked = self._lab, self.outcome.leaked
        looks: dict[str, Callable[[], list[str]]] = {
            "grant": lambda: sorted(lab.live().values()),
            "claim in the API": lambda: claims.left(lab),
            "claims in the book": lambda: [str(lab.metric("sluice_dra_claims"))],
        }
        for what, look in looks.items():
            try:
                until(f"no {what} is left", lambda look=look: look() in ([], ["0.0"]), 90)
            except NodeError:
                leaked += [f"{what}: {one}" for one in look()]
        files = (
            "ls -d /run/cdi/sluice.dev-grant_* /var/run/cdi/sluice.dev-grant_* 2>/dev/null; true"
        )
        leaked += lab.cluster.run("sh", "-c", files).stdout.split()


def churn(
    lab: Lab, image: str, pairs: int, kill_daemon: Callable[[], None], seed: int = 0
) -> Outcome:
    return Churn(lab, image, pairs, kill_daemon, seed).run()

"""The tools of a scene: the node (started when the scene first needs it), programs with and without a grant, and
times by the run's budget."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.gpu.rows import FACTS, Rows
from tests.kit.measure import ahead
from tests.kit.node import Node, NodeError, Tenant
from tests.kit.places import MESON

JOB, SLICES, COSTS, WAYS = (
    MESON / "tests" / f"gpu_{name}" for name in ("job", "slices", "costs", "ways")
)
PROBE_ITERATIONS = 100_000
SHORTEST_S = 0.3
IN_FLIGHT_MS, SHALLOWEST, DEEPEST = 40.0, 16, 1000
"""Kernels in flight by their length, and launches; a card's queue has about a thousand."""
STARTS_S = 1.0
"""Seconds a program needs until it can launch, and what each one more beside it adds (STARTS_EACH_S): those that
measure the same time begin that much later."""
STARTS_EACH_S = 0.3


@dataclass
class Stage:
    report: Rows
    node: Node
    scale: float
    out: Path
    _alone: dict[int, float] = field(default_factory=dict)
    _running: bool = False
    _per_ms: int = 0

    @property
    def simulated(self) -> bool:
        return bool(self.node.gpus)

    def seconds(self, wanted: float) -> float:
        return max(SHORTEST_S, wanted * self.scale)

    def started(self) -> Node:
        """The node with its daemon."""
        if not self._running:
            self.node.start()
            self._running = True
            if self.simulated and self.node.daemon is not None:
                ahead(self.node.daemon.pid)
        return self.node

    def bare(
        self, program: Path | str, *arguments: str, env: dict[str, str] | None = None
    ) -> Tenant:
        """A program straight on the driver, without Sluice."""
        process = subprocess.Popen(
            [program, *arguments],
            env={**self.node.on_the_driver(), **(env or {})},
            stdout=subprocess.PIPE,
            stdin=subprocess.PIPE,
            text=True,
        )
        tenant = Tenant(Path(program).name, process)
        self.node.tenants.append(tenant)
        if self.simulated:
            ahead(process.pid)
        return tenant

    def granted(
        self,
        name: str,
        program: Path | str,
        *arguments: str,
        cores: float,
        gpumem: str = "4Gi",
        more: tuple[str, ...] = (),
        env: dict[str, str] | None = None,
    ) -> Tenant:
        flags = ("--gpumem", gpumem, "--cores", f"{cores:g}", *more)
        return self.started().run(
            name, program, *arguments, flags=flags, env=env, measured=self.simulated
        )

    @property
    def per_ms(self) -> int:
        """Iterations of the test kernel that take a millisecond on this card (a million nanoseconds on the simulator)."""
        if not self._per_ms:
            with contextlib.suppress(OSError, ValueError, KeyError):
                self._per_ms = int(
                    json.loads((self.out / FACTS).read_text())["card"]["iterations_per_ms"]
                )
        if not self._per_ms:
            self._per_ms = max(1, round(self._rate(PROBE_ITERATIONS) * 1_000_000))
            self.report.facts["iterations_per_ms"] = self._per_ms
        return self._per_ms

    def _rate(self, iterations: int) -> float:
        arguments = (*self.work(iterations), "--warm", f"{self.seconds(1)}")
        return rate(
            self.bare(JOB, "train", *arguments, "--seconds", f"{self.seconds(1.5)}").result()
        )

    def work(self, iterations: int) -> tuple[str, ...]:
        """Arguments of a job for its kernel: enough of them in flight that a processor's pause does not show."""
        ms = iterations / self._per_ms if self._per_ms else 1.0
        depth = int(min(DEEPEST, max(SHALLOWEST, IN_FLIGHT_MS / ms)))
        return ("--kernel-ns", str(iterations), "--depth", str(depth))

    def alone(self, iterations: int) -> float:
        """Rate of a lone program without Sluice: what shares are shares of."""
        if iterations not in self._alone:
            self._alone[iterations] = self._rate(iterations)
        return self._alone[iterations]

    def start_ns(self, programs: int, under_us: bool = True) -> str:
        later_s = STARTS_S + STARTS_EACH_S * programs * (2 if under_us and self.simulated else 1)
        return str(time.monotonic_ns() + int(later_s * 1e9))


def rate(answer: dict[str, Any]) -> float:
    """Kernels' iterations a nanosecond."""
    if not answer["wall_ns"]:
        raise NodeError("the program measured no time")
    return float(answer["gpu_ns"] / answer["wall_ns"])


@contextlib.contextmanager
def stage(name: str, out: Path, scale: float, gpus: str, card: str) -> Iterator[Stage]:
    directory = Path(os.environ.get("TMPDIR", "/tmp")) / "n"  # short: Unix sockets allow 107 bytes
    report = Rows(facts={"shares": []}, scene=name, card=card, out=out)
    made = Stage(report, Node(directory, gpus=gpus), scale, out)
    try:
        yield made
    finally:
        report.save()
        made.node.stop()

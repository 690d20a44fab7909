"""Programs whose launches are of ever new shapes, alone on a GPU: what the cap costs them, against the bare driver."""

from __future__ import annotations

from dataclasses import dataclass

from tests.bench.entries import Entry, entry
from tests.kit.node import Node

ROWS = ((10_000, 32), (50_000, 8))
"""Kernel's length in ns, and the launches after which another grid follows."""
GRANTS = (("elastic", 100), ("hard", 100), ("hard", 50))
SECONDS = 3


@dataclass(frozen=True)
class Row:
    kernel_ns: int
    shape_every: int

    def arguments(self) -> tuple[str, ...]:
        return (
            "--kernel-ns",
            str(self.kernel_ns),
            "--new-shape",
            str(self.shape_every),
        )

    def bare(self, node: Node) -> float:
        """A count of launches, not a time: nothing stops a bare program from queueing minutes of work."""
        launches = SECONDS * 1_000_000_000 // self.kernel_ns
        job = node.run_bare("bare", *self.arguments(), "--warm", "0", "--launches", str(launches))
        return float(job.result()["share_ratio"])

    def share(self, node: Node, uuid: str, policy: str, cores: int) -> float:
        job = node.run_tenant(
            f"shapes-{self.kernel_ns}-{policy}-{cores}",
            *self.arguments(),
            "--warm",
            "1",
            "--seconds",
            str(SECONDS),
            flags=(
                "--gpumem",
                "4Gi",
                "--cores",
                str(cores),
                "--policy",
                policy,
                "--gpu-uuid",
                uuid,
            ),
        )
        return float(job.result()["share_ratio"])


def run(node: Node, uuid: str) -> list[Entry]:
    whole: list[float] = []
    halves: list[float] = []
    bares: list[float] = []
    for row in (Row(*lengths) for lengths in ROWS):
        bare = row.bare(node)
        bares.append(bare)
        for policy, cores in GRANTS:
            share = row.share(node, uuid, policy, cores)
            if cores == 100:
                whole.append(share / bare)
            else:
                halves.append(abs(share - cores / 100) * 100)
    return [
        entry(
            "new_shapes_over_bare_ratio",
            "ratio",
            whole,
            value=min(whole),
            baseline=min(bares),
            target=">= 0.97",
        ),
        entry("new_shapes_hard_error_points", "points", halves, value=max(halves), target="<= 1"),
    ]

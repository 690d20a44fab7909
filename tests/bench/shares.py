"""How exact a hard share is: a lone tenant over a grid of limits, kernel lengths, and ways to launch and to wait."""

from __future__ import annotations

import itertools
import statistics
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tests.bench.entries import Entry, entry
from tests.kit.node import Node

LIMITS_PERCENT = (10, 25, 50, 75, 90)
KERNELS_NS = (100_000, 1_000_000, 10_000_000, 100_000_000)
CHANGING_NS = (20_000, 100_000, 5_000_000)  # one function and shape, taken at random
DOORS = ("plain", "ex", "coop", "graph", "ptsz")
SIDE_BY_SIDE = 2  # tenants measured at once, each on a GPU of its own


@dataclass(frozen=True)
class Cell:
    lengths_ns: tuple[int, ...]
    sync: bool
    door: str
    limit: int | None  # None = without us
    gpu: str

    @property
    def seconds(self) -> int:
        return 12 if max(self.lengths_ns) >= 100_000_000 else 4

    def measure(self, node: Node) -> tuple[float, list[float]]:
        """(share over the whole run, share of each second)."""
        arguments = [
            "--kernel-ns",
            ",".join(map(str, self.lengths_ns)),
            "--door",
            self.door,
            *(["--sync"] if self.sync else []),
        ]
        name = f"{self.limit}-{max(self.lengths_ns)}-{self.door}-{self.sync}"
        if self.limit is None:
            # A count, not a time: nothing stops a bare program from queueing minutes of work.
            mean_ns = sum(self.lengths_ns) // len(self.lengths_ns)
            launches = self.seconds * 1_000_000_000 // mean_ns // 2
            job = node.run_bare(name, *arguments, "--warm", "0", "--launches", str(launches))
        else:
            job = node.run_tenant(
                name,
                *arguments,
                "--warm",
                "1.5",
                "--seconds",
                str(self.seconds),
                "--report",
                "1",
                flags=("--gpumem", "8Gi", "--cores", str(self.limit), "--gpu-uuid", self.gpu),
            )
        answer = job.result()
        return float(answer["share_ratio"]), [
            float(report["share_ratio"]) for report in answer["reports"]
        ]


def rows(quick: bool) -> list[tuple[tuple[int, ...], bool, str]]:
    kernels: list[tuple[int, ...]] = [(ns,) for ns in (KERNELS_NS[:3] if quick else KERNELS_NS)] + [
        CHANGING_NS
    ]
    grid = [(kernel, sync, "plain") for kernel, sync in itertools.product(kernels, (False, True))]
    return grid + [((1_000_000,), False, door) for door in DOORS[1:]]


def label(lengths_ns: tuple[int, ...]) -> str:
    return f"{lengths_ns[0] / 1e6:g} ms" if len(lengths_ns) == 1 else "changing"


def run(node: Node, uuids: list[str], quick: bool) -> list[Entry]:
    errors: list[float] = []
    windows: list[float] = []
    print(
        f"\n{'kernel':>8} {'wait':>6} {'door':>6} {'alone':>7}  "
        + "".join(f"{limit:>5} %" for limit in LIMITS_PERCENT)
    )
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        for lengths_ns, sync, door in rows(quick):
            alone, _ = Cell(lengths_ns, sync, door, None, "").measure(node)
            cells = [
                Cell(lengths_ns, sync, door, limit, uuids[i % SIDE_BY_SIDE])
                for i, limit in enumerate(LIMITS_PERCENT)
            ]
            got: list[tuple[float, list[float]]] = []
            for i in range(0, len(cells), SIDE_BY_SIDE):
                got += pool.map(lambda cell: cell.measure(node), cells[i : i + SIDE_BY_SIDE])
            for limit, (share, seconds) in zip(LIMITS_PERCENT, got, strict=True):
                # A program that waits after each launch cannot fill the GPU even without a limit.
                want = min(limit / 100, alone)
                errors.append(abs(share - want) * 100)
                # Of long kernels a second holds a whole number: not a matter of steering.
                if max(lengths_ns) <= 10_000_000:
                    windows += [abs(second - want) * 100 for second in seconds]
            print(
                f"{label(lengths_ns):>8} {'sync' if sync else 'queue':>6} {door:>6} {alone:>7.1%}  "
                + "".join(f"{share:>7.1%}" for share, _ in got),
                flush=True,
            )
    return [
        entry(
            "share_error_mean_points",
            "points",
            errors,
            value=statistics.mean(errors),
            target="<= 1",
        ),
        entry("share_error_max_points", "points", errors, value=max(errors)),
        entry(
            "share_error_worst_window_points", "points", windows, value=max(windows), target="<= 4"
        ),
    ]

"""Tenants side by side on one GPU: what sharing costs, how even it is, how fast an unused share moves."""

from __future__ import annotations

from tests.bench.entries import Entry, entry
from tests.kit.node import Node, Tenant, soon_ns

KERNEL_NS = "1000000"
REPORT_S = 0.02


def _share(job: Tenant) -> float:
    return float(job.result()["share_ratio"])


def _side_by_side(
    node: Node, uuid: str, cores: list[int], policy: str, kernel_ns: list[str]
) -> list[float]:
    start = soon_ns(2.5)
    jobs = [
        node.run_tenant(
            f"together-{policy}-{i}",
            "--kernel-ns",
            kernel_ns[i],
            "--warm",
            "2",
            "--seconds",
            "5",
            "--start-ns",
            start,
            flags=(
                "--gpumem",
                "4Gi",
                "--cores",
                str(share),
                "--policy",
                policy,
                "--gpu-uuid",
                uuid,
            ),
        )
        for i, share in enumerate(cores)
    ]
    return [_share(job) for job in jobs]


def efficiency(node: Node, uuid: str) -> Entry:
    """Two at 50 % against one alone without a limit."""
    alone = _share(
        node.run_bare("alone", "--kernel-ns", KERNEL_NS, "--warm", "0", "--launches", "4000")
    )
    ratios = [
        sum(_side_by_side(node, uuid, [50, 50], "hard", [KERNEL_NS] * 2)) / alone for _ in range(3)
    ]
    return entry("two_tenants_efficiency_ratio", "ratio", ratios, baseline=alone, target=">= 0.98")


def fairness(node: Node, uuid: str) -> Entry:
    """Jain's index of four equal grants whose kernels differ by a factor of twenty."""
    indexes = []
    for _ in range(3):
        got = _side_by_side(
            node, uuid, [25] * 4, "hard", ["100000", "500000", "1000000", "2000000"]
        )
        indexes.append(sum(got) ** 2 / (len(got) * sum(x * x for x in got)))
    return entry("jain_index", "ratio", indexes, baseline=1.0, target=">= 0.99")


def _first_ms(reports: list[dict[str, float]], after_ns: float, reached: float) -> float:
    """Milliseconds from `after_ns` until a report of at least that share."""
    for report in reports:
        if report["at_ns"] > after_ns and report["share_ratio"] >= reached:
            return (report["at_ns"] - after_ns) / 1e6
    raise SystemExit(f"bench: the share never reached {reached:.0%}")


def handover(node: Node, uuid: str) -> Entry:
    """An elastic tenant alone, a second one comes and goes: the time until each has what is its own, both ways."""
    times = []
    for round_ in range(3):
        flags = ("--gpumem", "4Gi", "--cores", "50", "--policy", "elastic", "--gpu-uuid", uuid)
        arguments = ("--kernel-ns", KERNEL_NS, "--report", str(REPORT_S), "--warm", "0.5")
        start, later = soon_ns(2.0), soon_ns(4.0)
        first = node.run_tenant(
            f"stays-{round_}", *arguments, "--seconds", "6", "--start-ns", start, flags=flags
        )
        second = node.run_tenant(
            f"comes-{round_}",
            "--kernel-ns",
            KERNEL_NS,
            "--report",
            str(REPORT_S),
            "--warm",
            "0.001",
            "--seconds",
            "1.5",
            "--start-ns",
            later,
            flags=flags,
        )
        came, stayed = second.result(), first.result()
        times.append(_first_ms(came["reports"], float(later), 0.45))
        times.append(_first_ms(stayed["reports"], came["reports"][-1]["at_ns"], 0.9))
    return entry("elastic_handover_ms", "ms", times, value=max(times), target="<= 200")


def run(node: Node, uuid: str) -> list[Entry]:
    return [efficiency(node, uuid), fairness(node, uuid), handover(node, uuid)]

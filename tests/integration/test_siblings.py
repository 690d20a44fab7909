"""Processes of one grant divide it by GPU time, whatever their launches are like."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator

import pytest

from tests.kit.node import Node, running, until
from tests.kit.places import TENANT
from tests.kit.workplace import workplace

MS = 1_000_000
LAUNCH = 'i=0; for ns in $1; do "$2" --kernel-ns $ns $4 >"$3.$i" & i=$((i + 1)); done; wait'
"""A shell as the grant's first process: kernel lengths, the program, where the answers go, its arguments."""


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with workplace() as directory, running(directory, gpus="1xh100-80gb") as node:
        yield node
        until("every grant is gone", lambda: not node.grants())


def measure(
    node: Node, name: str, kernels_ns: list[int], percent: int, more: str = ""
) -> list[float]:
    """The share of the GPU that each process had while all of them were at work, in one grant."""
    node.begin.unlink(missing_ok=True)
    answers = node.directory / name
    job = node.run(
        name,
        *("sh", "-c", LAUNCH, "sh", " ".join(map(str, kernels_ns)), str(TENANT), str(answers)),
        f"--begin {node.begin} --warm 1.5 --seconds 7 --report 0.4 {more}",
        flags=("--gpumem", "8Gi", "--cores", str(percent)),
        measured=True,
    )
    node.begin_when(len(kernels_ns))
    job.process.communicate(timeout=120)
    assert job.process.returncode == 0
    told = [
        [
            (int(line["at_ns"]), float(line["share_ratio"]))
            for line in map(json.loads, answers.with_suffix(f".{i}").read_text().splitlines())
            if "at_ns" in line
        ]
        for i in range(len(kernels_ns))
    ]
    begin, end = max(one[0][0] for one in told), min(one[-1][0] for one in told)
    got = []
    for one in told:
        spans = [
            (at - before, share)
            for (before, _), (at, share) in itertools.pairwise(one)
            if before >= begin - 400 * MS and at <= end
        ]
        got.append(sum(length * share for length, share in spans) / sum(s[0] for s in spans))
    return got


@pytest.mark.parametrize("how", ["", "--sync"], ids=["queued", "synchronised"])
def test_a_process_with_long_kernels_gets_no_more_than_its_seven_siblings(
    node: Node, how: str
) -> None:
    """When launches were counted, it had 0.374 of 0.4, and the seven 0.004 each; and it was charged
    a third of what it had."""
    seen: list[list[float]] = []
    for attempt in range(3):
        got = measure(node, f"eight{how}-{attempt}", [20 * MS, *[MS // 5] * 7], 40, how)
        seen.append(got)
        assert sum(got) <= 0.42, f"more than the grant: {seen}"
        if max(got) <= 0.05 * 1.25 and min(got) >= 0.05 * 0.75 and sum(got) >= 0.37:
            return
    raise AssertionError(f"wanted an eighth of 0.4 each: {seen}")

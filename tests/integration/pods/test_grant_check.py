"""`sluice selftest grant`, which `helm test` runs: it passes in the grant that was asked for, and in no other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from nodeagent.cli.selftest.grant import Found, closest, judge, wanted_share
from nodeagent.ports.clients import MemoryAsk
from nodeagent.units import MIB, Bytes
from tests.kit.node import Node, running
from tests.kit.places import SLUICE
from tests.kit.workplace import workplace

ASKED = MemoryAsk(amount_bytes=Bytes(1000 * MIB))
GOOD = Found(1000 * MIB, 300_000, 1000 * MIB, 2, 0, 0.3)


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with workplace() as directory, running(directory, gpus="1xh100-80gb") as node:
        yield node


def within(node: Node, *asked: str) -> tuple[int, str]:
    """Exit status and output of `sluice selftest grant` in a grant of 1000 MiB and 30 %."""
    done = node.cli(
        *("run", "--gpumem", "1000", "--cores", "30", "--quiet", "--"),
        *(SLUICE, "selftest", "grant", *asked),
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_it_measures_the_grant_that_it_runs_in(node: Node) -> None:
    status, said = within(node, "--gpumem", "1000", "--cores", "30", "--json")
    found = json.loads(said)
    assert (status, found["wrong"]) == (0, [])
    assert found["total_bytes"] == found["memory_limit_bytes"] == 1000 * MIB
    assert found["share_ratio"] == pytest.approx(0.3, abs=0.05)


def test_another_grant_than_was_asked_for_is_told(node: Node) -> None:
    status, said = within(node, "--gpumem", "2000", "--cores", "60", "--seconds", "0")
    assert status == 1
    assert "WRONG: the cap is 1000 MiB, 2000 were requested" in said
    assert "WRONG: the share is 30 %, 60 were requested" in said


def test_outside_of_a_grant_it_says_so(node: Node) -> None:
    done = node.cli("selftest", "grant", check=False)
    assert done.returncode == 1
    assert "this program is in no grant" in done.stderr


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (replace(GOOD, total_bytes=81_008 * MIB), "this program's CUDA is not ours"),
        (replace(GOOD, over_result=0), "over the cap ended with 0"),
        (replace(GOOD, below_result=2), "half the cap was refused"),
        (replace(GOOD, share_ratio=0.97), "0.970 of the GPU's time instead of 0.300"),
        (replace(GOOD, share_ratio=0.1), "0.100 of the GPU's time instead of 0.300"),
        (replace(GOOD, memory_limit_bytes=1, total_bytes=1), "the cap is 0 MiB"),
    ],
)
def test_each_way_to_be_wrong_fails(found: Found, said: str) -> None:
    wrong = judge(found, ASKED, 300_000)
    assert len(wrong) == 1
    assert said in wrong[0]


def test_no_cap_on_time_is_not_measured_against_one() -> None:
    assert judge(GOOD, ASKED, 300_000) == []
    assert judge(replace(GOOD, share_ppm=1_000_000, share_ratio=0.6), ASKED, None) == []
    assert judge(replace(GOOD, share_ratio=None), None, None) == []


def test_without_a_cap_on_time_the_share_is_measured_once() -> None:
    during_s: list[float] = []

    def measure(seconds: float) -> float:
        during_s.append(seconds)
        return 0.6

    assert closest(measure, wanted_share(1_000_000), 3.0) == 0.6
    assert during_s == [3.0]


@pytest.mark.parametrize(
    ("shares", "asked_s", "found"),
    [
        ((0.32,), [3.0], 0.32),
        ((0.1, 0.28), [3.0, 6.0], 0.28),
        ((0.2, 0.1, 0.37), [3.0, 6.0, 12.0], 0.37),
        ((0.97, 0.97, 0.98), [3.0, 6.0, 12.0], 0.97),
    ],
)
def test_a_difference_is_measured_again_before_it_counts(
    shares: tuple[float, ...], asked_s: list[float], found: float
) -> None:
    left, during_s = list(shares), []

    def measure(seconds: float) -> float:
        during_s.append(seconds)
        return left.pop(0)

    assert closest(measure, 0.3, 3.0) == found
    assert during_s == asked_s

"""Priorities, exclusive GPUs and grants with several of them, on a simulated node."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.kit.measure import shares
from tests.kit.node import Node, Tenant, running, until
from tests.kit.workplace import workplace

ELASTIC = ("--gpumem", "4Gi", "--cores", "50", "--policy", "elastic")


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with workplace() as directory, running(directory, gpus="2xh100-80gb") as node:
        yield node
        until("every grant is gone", lambda: not node.grants())


@pytest.fixture(autouse=True)
def _alone(node: Node) -> Iterator[None]:
    """Kill jobs that a test left, so that they do not spoil the next."""
    yield
    for job in node.tenants:
        if job.process.poll() is None:
            job.kill()


def gpu(node: Node, index: int) -> str:
    return next(str(g["uuid"]) for g in node.info()["gpus"] if g["index"] == index)


FULL, FLOOR = 0.85, 0.12
"""Shares (0 to 1) of a half second: more is the whole GPU, less the floor of who is held back."""
ENDLESS = ("--warm", "0.5", "--seconds", "3600", "--report", "0.5")


def next_report(job: Tenant, good: Callable[[float], bool]) -> list[float]:
    """Its reports up to the first good one, of a minute at most."""
    seen: list[float] = []
    while len(seen) < 120:
        seen.append(job.report())
        if good(seen[-1]):
            return seen
    raise AssertionError(f"{job.name} had {seen}")


def held_back(share: float) -> bool:
    """Held back, not forgotten."""
    return 0.01 < share < FLOOR


def test_a_higher_priority_goes_first_and_the_lower_one_keeps_a_floor(node: Node) -> None:
    uuid = ("--gpu-uuid", gpu(node, 0))
    low = node.run_tenant("low", *ENDLESS, flags=(*ELASTIC, *uuid), measured=True)
    next_report(low, lambda share: share > FULL)
    high = node.run_tenant(
        "high", *ENDLESS, flags=(*ELASTIC, *uuid, "--priority", "10"), measured=True
    )
    next_report(high, lambda share: share > FULL)
    for _ in range(3):  # it stays so
        next_report(low, held_back)
        next_report(high, lambda share: share > FULL)
    high.kill()
    next_report(low, lambda share: share > FULL)
    low.kill()


def test_priority_can_change_while_the_job_runs(node: Node) -> None:
    uuid = ("--gpu-uuid", gpu(node, 0))
    one, two = (
        node.run_tenant(name, *ENDLESS, flags=(*ELASTIC, *uuid), measured=True)
        for name in ("one", "two")
    )
    for job in (one, two):
        next_report(job, lambda share: 0.3 < share < 0.7)
    node.cli("resize", "one", "--priority", "5")
    assert node.grant("one")["priority"] == 5  # type: ignore[index]
    next_report(one, lambda share: share > FULL)
    next_report(two, held_back)
    node.cli("resize", "two", "--priority", "9")
    next_report(two, lambda share: share > FULL)
    next_report(one, held_back)
    one.kill()
    two.kill()


def test_an_exclusive_grant_has_no_company(node: Node) -> None:
    uuid = ("--gpu-uuid", gpu(node, 1))
    alone = node.run_tenant(
        "alone", "--seconds", "3600", flags=("--gpumem", "1Gi", "--policy", "exclusive", *uuid)
    )
    until("it has its grant", lambda: node.grant("alone"))
    refused = node.cli("run", *ELASTIC, *uuid, "--", "true", check=False)
    assert refused.returncode != 0
    assert "held by an exclusive grant" in refused.stderr
    alone.kill()
    until("it is gone", lambda: node.grant("alone") is None)
    shared = node.run_tenant("shared", "--seconds", "3600", flags=(*ELASTIC, *uuid))
    until("it has its grant", lambda: node.grant("shared"))
    refused = node.cli("run", "--policy", "exclusive", *uuid, "--", "true", check=False)
    assert refused.returncode != 0
    assert "shared by 1 grant" in refused.stderr
    shared.kill()
    wrong = node.cli("run", "--policy", "exclusive", "--cores", "50", "--", "true", check=False)
    assert wrong.returncode != 0
    assert "leave --cores out" in wrong.stderr


@pytest.mark.parametrize("number", ["1001", "high", "1.5"])
def test_a_priority_that_cannot_be_meant_is_named(node: Node, number: str) -> None:
    wrong = node.cli("run", "--priority", number, "--", "true", check=False)
    assert wrong.returncode == 2
    assert "--priority" in wrong.stderr
    assert "-1000 to 1000" in wrong.stderr


def test_a_grant_of_two_gpus_takes_its_turns_on_both_at_once(node: Node) -> None:
    one_gpu = ("--gpu-uuid", gpu(node, 0))

    def measure() -> list[float]:
        node.begin.unlink(missing_ok=True)
        work = ("--begin", str(node.begin), "--warm", "1", "--seconds", "3")
        local = node.run_tenant("local", *work, flags=(*ELASTIC, *one_gpu), measured=True)
        gang = node.run_tenant("gang", *work, flags=(*ELASTIC, "--gpus", "2"), measured=True)
        node.begin_when(2)
        return [job.result()["share_ratio"] for job in (gang, local)]

    shares(measure, [0.5, 0.5], 0.08, capped=False)

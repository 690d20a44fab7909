"""Priorities, exclusive GPUs and grants with several of them, on a simulated node."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.demo.__main__ import workplace
from tests.node import Node, running, soon_ns, until

ELASTIC = ("--gpumem", "4Gi", "--cores", "50", "--policy", "elastic")


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with workplace() as directory, running(directory, gpus="2xh100-80gb") as node:
        yield node
        until("every grant is gone", lambda: not node.grants(), 15)


def gpu(node: Node, index: int) -> str:
    return next(str(g["uuid"]) for g in node.info()["gpus"] if g["index"] == index)


def test_a_higher_priority_goes_first_and_the_lower_one_keeps_a_floor(node: Node) -> None:
    uuid = ("--gpu-uuid", gpu(node, 0))
    low = node.run_tenant(
        "low", "--warm", "0.5", "--seconds", "6", "--report", "0.5", flags=(*ELASTIC, *uuid)
    )
    until(
        "the low one runs", lambda: (g := node.grant("low")) and g["devices"][0]["launches_total"]
    )
    high = node.run_tenant(
        "high",
        "--warm",
        "1",
        "--seconds",
        "2",
        flags=(*ELASTIC, *uuid, "--priority", "10"),
    )
    held = [report["share_ratio"] for report in low.result()["reports"]]
    assert high.result()["share_ratio"] > 0.85
    assert 0.01 < min(held) < 0.12, "held back, not forgotten"
    assert max(held[-2:]) > 0.85, "and back when the other is done"


def test_priority_can_change_while_the_job_runs(node: Node) -> None:
    uuid = ("--gpu-uuid", gpu(node, 0))
    start = soon_ns(2.0)
    arguments = ("--start-ns", start, "--warm", "0.5", "--seconds", "4", "--report", "0.5")
    jobs = [node.run_tenant(n, *arguments, flags=(*ELASTIC, *uuid)) for n in ("one", "two")]
    until(
        "both run",
        lambda: (
            all(g["devices"][0]["launches_total"] for g in node.grants())
            and len(node.grants()) == 2
        ),
    )
    node.cli("resize", "one", "--priority", "5")
    assert node.grant("one")["priority"] == 5  # type: ignore[index]
    one, two = ([r["share_ratio"] for r in job.result()["reports"]] for job in jobs)
    assert max(one[2:]) > 0.85
    assert min(two[2:]) < 0.12


def test_an_exclusive_grant_has_no_company(node: Node) -> None:
    uuid = ("--gpu-uuid", gpu(node, 1))
    alone = node.run_tenant(
        "alone", "--seconds", "60", flags=("--gpumem", "1Gi", "--policy", "exclusive", *uuid)
    )
    until("it has its grant", lambda: node.grant("alone"))
    refused = node.cli("run", *ELASTIC, *uuid, "--", "true", check=False)
    assert refused.returncode != 0
    assert "held by an exclusive grant" in refused.stderr
    alone.kill()
    until("it is gone", lambda: node.grant("alone") is None)
    shared = node.run_tenant("shared", "--seconds", "60", flags=(*ELASTIC, *uuid))
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
    start = soon_ns(2.5)
    local = node.run_tenant(
        "local",
        "--start-ns",
        start,
        "--warm",
        "1",
        "--seconds",
        "3",
        flags=(*ELASTIC, "--gpu-uuid", gpu(node, 0)),
    )
    gang = node.run_tenant(
        "gang",
        "--start-ns",
        start,
        "--warm",
        "1",
        "--seconds",
        "3",
        flags=(*ELASTIC, "--gpus", "2"),
    )
    assert gang.result()["share_ratio"] == pytest.approx(0.5, abs=0.08)
    assert local.result()["share_ratio"] == pytest.approx(0.5, abs=0.08)

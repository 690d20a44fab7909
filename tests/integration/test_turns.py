"""Turns where a change of contexts costs what it may cost on a card: small shares, and a trainer beside a server.

Margins are wide here; `python -m tests.bench --only turns` measures closely.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.bench import turns
from tests.bench.turns import MS, Row, Served, serving, side_by_side
from tests.kit.measure import TRIES
from tests.kit.node import Node, until
from tests.kit.workplace import workplace


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with workplace() as directory, turns.card(directory / "card", 200) as node:
        yield node


@pytest.fixture(autouse=True)
def _short(node: Node, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(turns, "WARM_S", 2.0)
    monkeypatch.setattr(turns, "SECONDS", 3.0)
    yield
    until("every grant is gone", lambda: not node.grants())


def once(measure: Callable[[int], object], good: Callable[[object], bool]) -> None:
    """Good in one of some tries: what else the machine does can only make it worse."""
    seen: list[object] = []
    for attempt in range(TRIES):
        seen.append(measure(attempt))
        if good(seen[-1]):
            return
    raise AssertionError(f"measured {seen}")


@pytest.mark.parametrize("cores", [(5, 95), (30, 70), (20, 30, 50)], ids=str)
def test_what_changes_of_contexts_cost_is_lost_in_proportion(
    node: Node, cores: tuple[int, ...]
) -> None:
    """5 beside 95 had 2.1 to 3.1, and 70 beside 30 had 62 to 64."""
    row = Row(cores, (MS // 10 if min(cores) < 10 else MS,) * len(cores))

    def good(got: object) -> bool:
        assert isinstance(got, list)
        near = all(abs(one - want / 100) <= 0.03 for one, want in zip(got, cores, strict=True))
        return near and got[0] >= 0.8 * cores[0] / 100 and sum(got) >= 0.95

    once(lambda attempt: side_by_side(node, row, attempt), good)


def test_what_a_change_of_contexts_costs_is_measured_by_the_grants_and_said(node: Node) -> None:
    """The simulated GPU takes 200 us; the plan began with as much, so a wide margin shows that it was seen."""
    row = Row((50, 50), (MS,) * 2)

    def measure(attempt: int) -> object:
        side_by_side(node, row, 100 + attempt)
        return node.info()["gpus"][0]["context_switch_s"]

    once(measure, lambda got: isinstance(got, float) and 150e-6 <= got <= 400e-6)
    report = node.cli("doctor", check=False).stdout
    assert "context switch of GPU 0" in report
    assert "sluice_gpu_context_switch_seconds{" in node.metrics()


def test_launches_of_random_length_in_one_shape_use_their_windows(node: Node) -> None:
    """They slept half of a queue whose length was a guess, gave the rest of a window up behind it, and paid
    for what the neighbour's last launch took of their window: 20 and 59 %, and 90 % alone."""
    cores = (30, 70)
    row = Row(cores, ((MS // 10, 10 * MS),) * 2)

    def good(got: object) -> bool:
        assert isinstance(got, list)
        return got[0] >= 0.22 and got[1] >= 0.60 and sum(got) >= 0.86

    once(lambda attempt: side_by_side(node, row, attempt), good)


@pytest.mark.parametrize(
    ("priority", "least"), [(0, 0.80), (5, 0.65)], ids=["alike", "server first"]
)
def test_what_a_server_leaves_is_its_neighbours(node: Node, priority: int, least: float) -> None:
    """The trainer had 73 % of the GPU beside a server that needs 10, and 6 to 11 beside one of higher
    priority."""

    def good(got: object) -> bool:
        assert isinstance(got, Served)
        return got.trainer >= least and got.server >= 0.08 and got.p50_ms <= 16

    once(lambda attempt: serving(node, f"try-{attempt}", priority), good)

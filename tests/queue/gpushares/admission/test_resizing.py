"""A running pod that is resized by its annotation counts what it has then."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from queuecontroller.gpushares.admission import Question, Rules
from queuecontroller.gpushares.admission.pod_review import answer
from queuecontroller.gpushares.admission.quota import Quotas
from queuecontroller.gpushares.admission.usage import counted, use_of
from tests.queue.gpushares.admission.pods import pod

RULES = Rules()
GPU, MEM, CORES = "nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores"
SECOND = 10**9


def running(uid: str, memory: int, *, count: int = 1, **annotations: str) -> dict[str, Any]:
    document = pod({GPU: count, MEM: memory, CORES: 10})
    document["metadata"] |= {"uid": uid, "namespace": "t", "annotations": annotations}
    return document


def quotas(*pods: dict[str, Any], memory: int = 10_000) -> Quotas:
    made = Quotas(counted(RULES.devices))
    hard = {f"limits.{MEM}": memory}
    made.quota({"metadata": {"name": "q", "namespace": "t"}, "spec": {"hard": hard}})
    for one in pods:
        made.pod(one["metadata"]["uid"], use_of(RULES.devices, one))
    return made


def change(at: Quotas, old: dict[str, Any], text: str | None, now_s: int = 0, **how: Any) -> str:
    new = copy.deepcopy(old)
    new["metadata"]["annotations"].pop("resize.sluice.dev/c0", None)
    if text is not None:
        new["metadata"]["annotations"]["resize.sluice.dev/c0"] = text
    asked = Question(new, old, "t", "user", "ticket", **how)
    return "; ".join(map(str, answer(RULES, at, asked, now_s * SECOND).problems))


def test_more_is_counted_per_card_and_refused_where_it_does_not_fit() -> None:
    one, other = running("a", 2000, count=2), running("b", 3000)
    at = quotas(one, other)
    assert not change(at, one, "gpumem=3500", dry=True), "2 x 3500 + 3000"
    why = change(at, one, "gpumem=3501")
    assert "metadata.annotations[resize.sluice.dev/c0]" in why
    assert f"exceeding resource quota q: {MEM}" in why
    assert not change(at, other, "gpumem=100 gpucores=5"), "less always"


def test_what_was_let_in_counts_until_it_is_heard_of_and_then_once() -> None:
    one, other = running("a", 2000), running("b", 2000)
    at = quotas(one, other)
    assert not change(at, one, "gpumem=7000")
    assert change(at, other, "gpumem=3001"), "the first one's is on its way"
    at.pod("a", use_of(RULES.devices, one))  # its status changed meanwhile
    assert change(at, other, "gpumem=3001")
    grown = running("a", 2000, **{"resize.sluice.dev/c0": "gpumem=7000"})
    at.pod("a", use_of(RULES.devices, grown))
    assert not change(at, other, "gpumem=3000")
    assert change(at, other, "gpumem=3001", now_s=60), "and after those seconds, too"


def test_less_gives_nothing_back_and_neither_does_taking_it_away_take_more() -> None:
    small = running("a", 8000, **{"resize.sluice.dev/c0": "gpumem=100"})
    at = quotas(small)
    assert at.used()["t", MEM] == 8000
    assert not change(at, small, None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("memory=5", "'memory=5' is not NAME=AMOUNT with gpumem, gpumem-percentage, gpucores"),
        ("gpumem=1 gpumem=2", "gpumem is given twice"),
        ("gpumem=0", "must be from 1 to"),
        ("gpucores=100", "must be from 1 to 99, got 100"),
        ("gpumem=5 gpumem-percentage=5", "both set the memory"),
        ("gpumem=lots", "gpumem: "),
        ("gpumem=1" + " " * 300, "longer than 256"),
    ],
)
def test_what_cannot_be_meant_is_refused_as_it_is_written(text: str, said: str) -> None:
    one = running("a", 2000)
    assert said in change(quotas(one), one, text)


def test_other_changes_and_pods_that_are_over_are_left_alone() -> None:
    bad = running("a", 2000, **{"resize.sluice.dev/c0": "nonsense"})
    at = quotas(bad)
    new = copy.deepcopy(bad)
    new["metadata"]["annotations"]["note"] = "mine"
    assert not answer(RULES, at, Question(new, bad, "t", "u", "k"), 0).problems
    over = running("b", 2000) | {"status": {"phase": "Succeeded"}}
    assert not change(at, over, "gpumem=999999")

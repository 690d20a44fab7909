"""Quota per namespace: no pod gets past it, however many come at once, and what is released is free again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuecontroller.gpushares.admission import Quotas, counted, use_of
from queuecontroller.gpushares.admission.quota import WATCH_DELAY_NS, PodUse
from queuecontroller.gpushares.vendors.config import DeviceConfig
from tests.queue.gpushares.admission.pods import pod

GPU, MEM, CORES = "nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores"
DEVICES = DeviceConfig()


def quota(name: str = "q", namespace: str = "team", **more: Any) -> dict[str, Any]:
    hard = more.pop("hard", {"limits.nvidia.com/gpumem": 10000})
    return {"metadata": {"name": name, "namespace": namespace}, "spec": {"hard": hard, **more}}


def quotas(*documents: dict[str, Any]) -> Quotas:
    made = Quotas(counted(DEVICES))
    for one in documents or (quota(),):
        made.quota(one)
    return made


def use(memory: int = 0, cores: int = 0, ticket: str = "", **more: Any) -> PodUse:
    return PodUse("team", {MEM: memory, CORES: cores}, ticket, **more)


def test_amounts_are_those_of_each_card_times_their_number() -> None:
    document = pod({"nvidia.com/gpu": 2, MEM: 3000, CORES: 40}, {"nvidia.com/gpu": 1, MEM: 500})
    assert use_of(DEVICES, document).use == {GPU: 3, MEM: 6500, CORES: 80}


def test_of_init_containers_the_largest_counts() -> None:
    document = pod({"nvidia.com/gpu": 1, MEM: 3000})
    document["spec"]["initContainers"] = [
        {"name": f"i{i}", "resources": {"limits": {"nvidia.com/gpu": 1, MEM: memory}}}
        for i, memory in enumerate((5000, 2000))
    ]
    assert use_of(DEVICES, document).use == {GPU: 1, MEM: 5000}


def test_what_was_given_counts_exactly() -> None:
    document = pod({"nvidia.com/gpu": 2, "nvidia.com/gpumem-percentage": 50})
    assert use_of(DEVICES, document).use == {GPU: 2}
    given = [(40 << 30, 0), (40 << 30, 0)]
    assert use_of(DEVICES, document, given=given).use == {GPU: 2, MEM: 81920}


def test_what_goes_over_is_told_with_its_amounts() -> None:
    book = quotas()
    assert book.let_in(use(6000, ticket="a"), 0) == ""
    assert book.let_in(use(5000, ticket="b"), 0) == (
        "exceeding resource quota q: nvidia.com/gpumem: 5000 are requested, 6000 of 10000 are used"
    )
    assert book.let_in(use(4000, ticket="c"), 0) == ""


@pytest.mark.parametrize("prefix", ["limits.", "requests."])
def test_both_prefixes_count_and_the_least_holds(prefix: str) -> None:
    book = quotas(quota(hard={f"{prefix}{MEM}": 1000}))
    assert book.let_in(use(1001, ticket="a"), 0)
    both = quotas(quota(hard={f"limits.{MEM}": 2000, f"requests.{MEM}": 1000}))
    assert both.let_in(use(1500, ticket="a"), 0)
    assert not both.let_in(use(1000, ticket="a"), 0)


def test_none_at_all_is_a_quota_of_zero() -> None:
    book = quotas(quota(hard={f"limits.{CORES}": 0}))
    assert book.let_in(use(cores=1, ticket="a"), 0)
    assert not book.let_in(use(memory=5, ticket="a"), 0)


def test_who_is_let_in_counts_until_heard_of_and_then_once() -> None:
    book = quotas()
    book.let_in(use(6000, ticket="a"), 0)
    book.pod("uid-a", use(6000, ticket="a"))
    assert not book.let_in(use(4000, ticket="b"), 0)
    assert book.let_in(use(1, ticket="c"), 0)
    book.no_pod("uid-a")
    assert not book.let_in(use(6000, ticket="c"), 0)


def test_who_is_never_heard_of_counts_no_more_after_a_while() -> None:
    book = quotas()
    book.let_in(use(10000, ticket="a"), 0)
    assert book.let_in(use(1, ticket="b"), WATCH_DELAY_NS - 1)
    assert not book.let_in(use(1, ticket="b"), WATCH_DELAY_NS)


def test_a_question_that_changes_nothing_takes_nothing() -> None:
    book = quotas()
    for _ in range(3):
        assert not book.let_in(use(10000, ticket="a"), 0, dry=True)


def test_bound_pods_count_among_themselves() -> None:
    """Two replicas let in one each: only one of them is bound."""
    book = quotas()
    for uid in "ab":
        book.pod(uid, use(6000))
    assert book.bind("a", use(6000)) == ""
    book.pod("a", use(6000, bound=True))
    assert "exceeding resource quota q" in book.bind("b", use(6000))
    assert book.bind("a", use(6000)) == "", "asked again it is no other"
    book.no_pod("a")
    assert book.bind("b", use(6000)) == ""


SCOPES = [
    ({"scopes": ["Terminating"]}, {"has_deadline": True}, {}),
    ({"scopes": ["NotTerminating"]}, {}, {"has_deadline": True}),
    ({"scopes": ["BestEffort"]}, {"best_effort": True}, {}),
    ({"scopes": ["NotBestEffort"]}, {}, {"best_effort": True}),
    *(
        (
            {"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": operator, "values": values}]}},
            {"priority_class": inside}, {"priority_class": outside},
        )
        for operator, values, inside, outside in (
            ("In", ["high"], "high", "low"),
            ("NotIn", ["high"], "low", "high"),
            ("Exists", [], "low", ""),
            ("DoesNotExist", [], "", "low"),
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize(("scope", "inside", "outside"), SCOPES, ids=str)
def test_a_quota_with_scopes_is_for_those_alone(
    scope: dict[str, Any], inside: dict[str, Any], outside: dict[str, Any]
) -> None:
    book = quotas(quota(**scope))
    assert book.let_in(use(20000, ticket="a", **inside), 0)
    assert not book.let_in(use(20000, ticket="a", **outside), 0)
    assert not book.let_in(use(10000, ticket="b", **inside), 0), "others do not count in it"


def test_a_quota_that_goes_or_changes_counts_no_more() -> None:
    book = quotas()
    assert book.let_in(use(20000, ticket="a"), 0)
    book.quota(quota(hard={f"limits.{MEM}": 30000}))
    assert not book.let_in(use(20000, ticket="a"), 0)
    book.no_quota("team", "q")
    assert not book.let_in(use(10**9, ticket="b"), 0)
    assert book.limits() == {}


def test_vendors_resources_are_counted_too() -> None:
    book = quotas(quota(hard={"limits.hygon.com/dcumem": 1000}))
    asked = pod({"hygon.com/dcunum": 2, "hygon.com/dcumem": 600})
    assert "hygon.com/dcumem: 1200 are requested" in book.let_in(use_of(DEVICES, asked, "team"), 0)


STEP = st.one_of(
    st.tuples(st.just("ask"), st.integers(1, 6), st.booleans()),
    st.tuples(st.just("hear"), st.integers(0, 5), st.booleans()),
    st.tuples(st.just("go"), st.integers(0, 5), st.booleans()),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(STEP, max_size=40))
def test_whatever_comes_at_a_time_no_more_is_let_in_than_the_quota(steps: list[Any]) -> None:
    """Pods that were admitted, seen in the watch or not yet, are within the quota at any moment."""
    book = quotas(quota(hard={f"limits.{MEM}": 10}))
    asked: dict[str, int] = {}
    heard: dict[str, int] = {}
    number = 0
    for what, n, flag in steps:
        if what == "ask":
            number += 1
            ticket = f"t{number}"
            if not book.let_in(use(n, ticket=ticket), 0, dry=flag) and not flag:
                asked[ticket] = n
        elif what == "hear" and asked:
            ticket = sorted(asked)[n % len(asked)]
            heard[ticket] = asked.pop(ticket)
            book.pod(f"uid-{ticket}", use(heard[ticket], ticket=ticket))
        elif what == "go" and heard:
            ticket = sorted(heard)[n % len(heard)]
            del heard[ticket]
            book.no_pod(f"uid-{ticket}")
        held = sum(asked.values()) + sum(heard.values())
        assert held <= 10
        assert book.used().get(("team", MEM), 0) == sum(heard.values())
        room = 10 - held
        assert not room or not book.let_in(use(room, ticket="try"), 0, dry=True)
        assert book.let_in(use(room + 1, ticket="try"), 0, dry=True)

"""Label selectors, taints, tolerations and node affinity, rule by rule."""

from __future__ import annotations

import pytest

from queuecontroller.scheduler.model.selectors import (
    LabelSelector,
    NodeSelectorTerm,
    Requirement,
    Taint,
    Toleration,
    node_affinity_matches,
    untolerated,
)

LABELS = {"zone": "a", "gen": "7"}


@pytest.mark.parametrize(
    ("requirement", "matches"),
    [
        (Requirement("zone", "In", ("a", "b")), True),
        (Requirement("zone", "In", ("b",)), False),
        (Requirement("none", "In", ("a",)), False),
        (Requirement("zone", "NotIn", ("b",)), True),
        (Requirement("zone", "NotIn", ("a",)), False),
        (Requirement("none", "NotIn", ("a",)), True),
        (Requirement("zone", "Exists"), True),
        (Requirement("none", "Exists"), False),
        (Requirement("none", "DoesNotExist"), True),
        (Requirement("zone", "DoesNotExist"), False),
        (Requirement("gen", "Gt", ("6",)), True),
        (Requirement("gen", "Gt", ("7",)), False),
        (Requirement("gen", "Lt", ("8",)), True),
        (Requirement("zone", "Lt", ("8",)), False),
        (Requirement("zone", "Like", ("a",)), False),
    ],
)
def test_one_requirement(requirement: Requirement, matches: bool) -> None:
    assert LabelSelector((requirement,)).matches(LABELS) is matches


def test_the_empty_selector_matches_everything() -> None:
    assert LabelSelector().matches({})


SPOT = Taint("spot", "yes", "NoSchedule")


@pytest.mark.parametrize(
    ("toleration", "tolerates"),
    [
        (Toleration("spot", "Equal", "yes", "NoSchedule"), True),
        (Toleration("spot", "Equal", "yes"), True),
        (Toleration("spot", "Equal", "no"), False),
        (Toleration("spot", "Exists"), True),
        (Toleration("", "Exists"), True),
        (Toleration("", "Equal", "yes"), False),
        (Toleration("other", "Exists"), False),
        (Toleration("spot", "Exists", effect="NoExecute"), False),
    ],
)
def test_one_toleration(toleration: Toleration, tolerates: bool) -> None:
    assert (untolerated((SPOT,), (toleration,)) is None) is tolerates


def test_a_soft_taint_keeps_nobody_away() -> None:
    assert untolerated((Taint("x", effect="PreferNoSchedule"),), ()) is None


def terms(*all_expressions: tuple[Requirement, ...]) -> tuple[NodeSelectorTerm, ...]:
    return tuple(NodeSelectorTerm(expressions) for expressions in all_expressions)


IN_A = Requirement("zone", "In", ("a",))
IN_B = Requirement("zone", "In", ("b",))
ELSEWHERE = Requirement("rack", "In", ("r9",))
KEYS = frozenset({"zone", "gen"})


@pytest.mark.parametrize(
    ("selector", "affinity", "matches"),
    [
        pytest.param({}, None, True, id="nothing asked"),
        pytest.param({"zone": "a"}, None, True, id="selector holds"),
        pytest.param({"zone": "b"}, None, False, id="selector does not hold"),
        pytest.param({"rack": "r9"}, None, True, id="a key the flavor does not know is no matter"),
        pytest.param({}, terms((IN_A,)), True, id="term holds"),
        pytest.param({}, terms((IN_B,)), False, id="term does not hold"),
        pytest.param({}, terms((IN_B,), (IN_A,)), True, id="one of two terms is enough"),
        pytest.param({}, terms((IN_A, IN_B)), False, id="all expressions of a term must hold"),
        pytest.param({}, terms((IN_B,), (ELSEWHERE,)), True, id="a term about unknown keys holds"),
        pytest.param({"zone": "b"}, terms((IN_A,)), False, id="selector and affinity both count"),
    ],
)
def test_node_affinity(
    selector: dict[str, str], affinity: tuple[NodeSelectorTerm, ...] | None, matches: bool
) -> None:
    assert node_affinity_matches(selector, affinity, LABELS, KEYS) is matches

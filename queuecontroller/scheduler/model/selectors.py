"""Kubernetes' matching rules: label selectors, node affinity, taints and tolerations.

Sources: the API pages of labels.Selector, NodeSelectorTerm and Toleration. Flavors stand in for
nodes, so only the keys a flavor knows are matched (see `flavors`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True)
class Requirement:
    """`key operator values`, as in matchExpressions."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """All requirements must hold; without any, everything matches."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(holds(one, labels) for one in self.requirements)


@dataclass(frozen=True, slots=True)
class NodeSelectorTerm:
    """Requirements that must all hold; a term without any matches nothing."""

    expressions: tuple[Requirement, ...] = ()


@dataclass(frozen=True, slots=True)
class Taint:
    key: str
    value: str = ""
    effect: str = "NoSchedule"


@dataclass(frozen=True, slots=True)
class Toleration:
    """An empty key tolerates every key, an empty effect every effect."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: Taint) -> bool:
        if self.effect and self.effect != taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        if self.operator == "Exists":
            return True
        return self.operator in ("", "Equal") and bool(self.key) and self.value == taint.value


def _number(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


def _compares(one: Requirement, labels: Mapping[str, str], greater: bool) -> bool:
    have = _number(labels.get(one.key, ""))
    bound = _number(one.values[0]) if len(one.values) == 1 else None
    if have is None or bound is None:
        return False
    return have > bound if greater else have < bound


Test = Callable[[Requirement, Mapping[str, str]], bool]

# A missing label satisfies NotIn, because None is in no list of values.
OPERATORS: Final[Mapping[str, Test]] = MappingProxyType(
    {
        "In": lambda one, labels: labels.get(one.key) in one.values,
        "NotIn": lambda one, labels: labels.get(one.key) not in one.values,
        "Exists": lambda one, labels: one.key in labels,
        "DoesNotExist": lambda one, labels: one.key not in labels,
        "Gt": lambda one, labels: _compares(one, labels, greater=True),
        "Lt": lambda one, labels: _compares(one, labels, greater=False),
    }
)


def holds(one: Requirement, labels: Mapping[str, str]) -> bool:
    test = OPERATORS.get(one.operator)
    return test is not None and test(one, labels)


# PreferNoSchedule never excludes a pod, so it does not count against a flavor.
_HARD_EFFECTS: Final = frozenset({"NoSchedule", "NoExecute"})


def untolerated(taints: tuple[Taint, ...], tolerations: tuple[Toleration, ...]) -> Taint | None:
    """The first taint that excludes the pods, else None."""
    for taint in taints:
        if taint.effect in _HARD_EFFECTS and not any(t.tolerates(taint) for t in tolerations):
            return taint
    return None


def node_affinity_matches(
    node_selector: Mapping[str, str],
    affinity: tuple[NodeSelectorTerm, ...] | None,
    node_labels: Mapping[str, str],
    known_keys: frozenset[str],
) -> bool:
    """True if pods may run on nodes with these labels, evaluating only `known_keys`.

    A selector entry or an expression about a key outside `known_keys` is dropped: the flavor does
    not define such a label. A term that loses all its expressions could match any node, so the
    whole affinity then holds.
    """
    for key, wanted in node_selector.items():
        if key in known_keys and node_labels.get(key) != wanted:
            return False
    if affinity is None:
        return True
    terms: list[tuple[Requirement, ...]] = []
    for term in affinity:
        relevant = tuple(e for e in term.expressions if e.key in known_keys)
        if not relevant:
            return True
        terms.append(relevant)
    return any(all(holds(e, node_labels) for e in term) for term in terms)

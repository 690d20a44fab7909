"""Rules by which the workloads of one service are spread over the domains of a topology.

A rule limits the share of the service's pod sets that a domain may have before the next one is
placed there. It counts when a workload is placed; nothing is moved later.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from queuecontroller.scheduler.model.selectors import LabelSelector, Requirement
from sluicecommon.reader import Problem, shown

MAX_RULES: Final = 2
_FIELDS: Final = frozenset({"workloadLabelSelectors", "rules"})
_OF_RULE: Final = frozenset({"topologyKey", "maxShareAllowingPlacement", "enforcementMode"})
_OF_SELECTOR: Final = frozenset({"key", "operator", "values"})
_MODES: Final = ("Required", "Preferred")
_PERCENT: Final = re.compile(r"([1-9][0-9]?)%", re.ASCII)
_SHARE: Final = re.compile(r"0?\.[0-9]{1,9}", re.ASCII)
_MILLI: Final = re.compile(r"([1-9][0-9]{0,2})m", re.ASCII)


@dataclass(frozen=True, slots=True)
class SpreadingRule:
    level: str
    """Node label of a topology's level."""
    most: Fraction
    """The largest share of a domain that may get the next pod set, between 0 and 1."""
    required: bool = True
    """False: domains with a larger share come last, but may be used."""

    def exceeds(self, count: int, total: int) -> bool:
        return count > self.most * total


@dataclass(frozen=True, slots=True)
class Spreading:
    rules: tuple[SpreadingRule, ...]
    selector: LabelSelector | None = None
    """Workloads of the namespace that count; None: those of the same job."""


def read_spreading(text: str) -> Spreading | None:
    """The rules in an annotation; None: it cannot be read."""
    problems, found = _read(text)
    return None if problems else found


def spreading_problems(text: str, where: str) -> Iterator[Problem]:
    for what in _read(text)[0]:
        fix = 'write {"rules": [{"topologyKey": LEVEL, "maxShareAllowingPlacement": "45%"}]}'
        yield Problem(where, what, fix)


def _read(text: str) -> tuple[list[str], Spreading | None]:
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        return [f"{shown(text)} is not a JSON object"], None
    problems = [f"unknown field {shown(name)}" for name in given.keys() - _FIELDS]
    rules = given.get("rules")
    if not isinstance(rules, list) or not 0 < len(rules) <= MAX_RULES:
        return [*problems, f"rules needs 1 to {MAX_RULES} entries"], None
    made = []
    for one in rules:
        rule = _rule(one)
        if isinstance(rule, str):
            problems.append(rule)
        else:
            made.append(rule)
    if len({one.level for one in made}) < len(made):
        problems.append("two rules have the same topologyKey")
    selector = None
    if given.get("workloadLabelSelectors"):
        found = _selector(given["workloadLabelSelectors"])
        if isinstance(found, str):
            problems.append(found)
        else:
            selector = found
    return problems, Spreading(tuple(made), selector)


def _rule(given: Any) -> SpreadingRule | str:
    if not isinstance(given, dict) or given.keys() - _OF_RULE:
        return f"a rule has the fields {', '.join(sorted(_OF_RULE))}"
    level = given.get("topologyKey")
    if not isinstance(level, str) or not level:
        return "a rule needs a topologyKey"
    most = _share(given.get("maxShareAllowingPlacement"))
    if most is None:
        what = shown(given.get("maxShareAllowingPlacement"))
        return f"maxShareAllowingPlacement: expected 1% to 99%, or a number between 0 and 1: {what}"
    mode = given.get("enforcementMode") or _MODES[0]
    if mode not in _MODES:
        return f"enforcementMode: expected {' or '.join(_MODES)}, got {shown(mode)}"
    return SpreadingRule(level, most, mode == _MODES[0])


def _share(given: Any) -> Fraction | None:
    """A share as a percentage, or as Kubernetes writes quantities (0.45, "0.45", "450m")."""
    text = str(given) if isinstance(given, (str, float)) else ""
    if found := _PERCENT.fullmatch(text):
        return Fraction(int(found[1]), 100)
    if found := _MILLI.fullmatch(text):
        return Fraction(int(found[1]), 1000)
    share = Fraction(text) if _SHARE.fullmatch(text) else Fraction(0)
    return share if share > 0 else None


def _selector(given: Any) -> LabelSelector | str:
    if not isinstance(given, list) or len(given) != 1 or not isinstance(given[0], Mapping):
        return "workloadLabelSelectors has one entry"
    (one,) = given
    values = one.get("values")
    if (
        one.keys() - _OF_SELECTOR
        or not isinstance(one.get("key"), str)
        or not one["key"]
        or one.get("operator") != "In"
        or not isinstance(values, list)
        or not values
        or not all(isinstance(value, str) for value in values)
    ):
        return "a selector has a key, the operator In, and a list of values"
    return LabelSelector((Requirement(one["key"], "In", tuple(values)),))

"""Annotations of pod templates by which a pod set requests a topology, and their grammar."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from queuecontroller.frameworks import names
from queuecontroller.frameworks.patches import Document, at
from queuecontroller.scheduler.model.spreading import spreading_problems
from sluicecommon.reader import Problem, shown

REQUIRED: Final = f"{names.PREFIX}podset-required-topology"
PREFERRED: Final = f"{names.PREFIX}podset-preferred-topology"
UNCONSTRAINED: Final = f"{names.PREFIX}podset-unconstrained-topology"
GROUP_NAME: Final = f"{names.PREFIX}podset-group-name"
SLICE_TOPOLOGY: Final = f"{names.PREFIX}podset-slice-required-topology"
SLICE_SIZE: Final = f"{names.PREFIX}podset-slice-size"
LAYERS: Final = f"{names.PREFIX}podset-slice-required-topology-constraints"
SPREADING: Final = f"{names.PREFIX}podset-topology-spreading"
_MODES: Final = (REQUIRED, PREFERRED, UNCONSTRAINED)
_LEVELS: Final = (REQUIRED, PREFERRED, SLICE_TOPOLOGY)
_LABEL_KEY: Final = re.compile(
    r"([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
    r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?",
    re.ASCII,
)


def _annotations(template: Document) -> Mapping[str, Any]:
    found = at(template, ("metadata", "annotations"))
    return found if isinstance(found, Mapping) else {}


def asks_for_topology(template: Document) -> bool:
    """True if a pod or its template asks for a place in a topology."""
    given = _annotations(template)
    return given.get(UNCONSTRAINED) == "true" or any(given.get(one) for one in _LEVELS)


def topology_problems(
    template: Document, where: str, count: int | None, least: int | None = None
) -> Iterator[Problem]:
    """Problems of a pod template's annotations. `count` is the number of its pods, None if that is
    not known; `least` are enough to begin with."""
    given = _annotations(template)
    modes = [one for one in _MODES if one in given]
    if len(modes) > 1:
        what = f"{' and '.join(modes)} are given together"
        yield Problem(where, what, "leave one of them")
    for key in _LEVELS:
        if key in given and not _LABEL_KEY.fullmatch(str(given[key])):
            what = f"{shown(given[key])} is not a label's key"
            yield Problem(f"{where}[{key}]", what, "name a level of the Topology")
    if given.get(UNCONSTRAINED, "true") != "true":
        what = f"{shown(given[UNCONSTRAINED])} has no meaning"
        yield Problem(f"{where}[{UNCONSTRAINED}]", what, "write true, or remove it")
    if GROUP_NAME in given and not {REQUIRED, PREFERRED} & given.keys():
        what = "pod sets are placed together in a required or preferred topology"
        yield Problem(f"{where}[{GROUP_NAME}]", what, f"add {REQUIRED} or {PREFERRED}")
    yield from _slice_problems(given, where, count)
    if count is not None:
        yield from _partial_slice_problems(given, where, count, least)


def _slice_problems(given: Mapping[str, Any], where: str, count: int | None) -> Iterator[Problem]:
    if SLICE_TOPOLOGY in given and SLICE_SIZE not in given:
        yield Problem(f"{where}[{SLICE_SIZE}]", "is required", f"add it to {SLICE_TOPOLOGY}")
    if SLICE_SIZE not in given:
        return
    if SLICE_TOPOLOGY not in given:
        what = f"is given without {SLICE_TOPOLOGY}"
        yield Problem(f"{where}[{SLICE_SIZE}]", what, "add that, or remove this")
    size = str(given[SLICE_SIZE])
    if not (size.isascii() and size.isdigit() and 0 < int(size[:11]) < 1 << 31):
        what = f"{shown(size)} is not a whole number from 1"
        yield Problem(f"{where}[{SLICE_SIZE}]", what, "write a valid number, in quotes")
    elif count is not None and int(size) > count:
        what = f"slices of {size} pods are larger than the pod set ({count})"
        yield Problem(f"{where}[{SLICE_SIZE}]", what, "write less")


def _partial_slice_problems(
    given: Mapping[str, Any], where: str, count: int, least: int | None
) -> Iterator[Problem]:
    """The last slice may be smaller, but has no slices within, and its size has to be known."""
    try:
        layers = json.loads(given.get(LAYERS) or "[]")
    except (ValueError, RecursionError):
        return
    layers = layers if isinstance(layers, list) else []
    key, size = (
        (LAYERS, at(layers[0], ("size",))) if layers else (SLICE_SIZE, given.get(SLICE_SIZE))
    )
    if not str(size).isdecimal() or int(str(size)[:11]) < 1 or not count % int(str(size)[:11]):
        return
    what = f"{count} pods are no whole number of slices of {size}"
    if len(layers) > 1:
        yield Problem(f"{where}[{key}]", f"{what}, and slices are within them", "write a divisor")
    elif least is not None:
        what = f"{what}, and the number of pods may be reduced"
        yield Problem(f"{where}[{key}]", what, "write a divisor, or give no least number of pods")


def spread_problems(templates: Iterable[tuple[str, Document]]) -> Iterator[Problem]:
    """Problems of the rules by which pod sets are spread; `templates` are the places and pod
    templates of a job."""
    of_group: dict[str, Any] = {}
    for where, template in templates:
        given = _annotations(template)
        rules = given.get(SPREADING)
        if rules is not None:
            yield from spreading_problems(str(rules), f"{where}[{SPREADING}]")
        group = given.get(GROUP_NAME)
        if group and of_group.setdefault(str(group), rules) != rules:
            what = f"the pod sets of group {shown(group)} have different rules"
            yield Problem(f"{where}[{SPREADING}]", what, "give all of them the same")

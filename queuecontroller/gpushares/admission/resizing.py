"""Quota usage of a running pod's `resize.sluice.dev/CONTAINER` annotations. An agent with
`kubelet.resize = "on"` may give a container more than the pod was created with, and that counts. A
smaller request returns no quota, because the annotation can be removed again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from queuecontroller.gpushares.vendors.asks import Container, annotations_of, containers_of
from queuecontroller.gpushares.vendors.config import Nvidia
from sluicecommon.kubernetes.quantity import QuantityError, gpu_mib_problem, parse_amount
from sluicecommon.pod_annotations import CORES, MEMORY, PERCENT, RESIZE_PREFIX, words
from sluicecommon.reader import Problem

MOST: Final = {MEMORY: 1 << 40, PERCENT: 100, CORES: 99}


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, str]:
    """Resize annotations that are new or have another value than before."""
    old, new = annotations_of(before), annotations_of(after)
    return {
        key: text
        for key, text in new.items()
        if key.startswith(RESIZE_PREFIX) and old.get(key) != text
    }


def problems(asked: Mapping[str, str]) -> tuple[Problem, ...]:
    """Validation errors of resize annotations."""
    found = []
    for key, text in sorted(asked.items()):
        try:
            amounts(text)
        except ValueError as error:
            where, what = f"metadata.annotations[{key[:100]}]", str(error).removeprefix(": ")
            found.append(Problem(where, what, "such as gpumem=4096 gpucores=20"))
    return tuple(found)


def amounts(text: str) -> dict[str, int]:
    """Amounts by word (`gpumem`, …). Raises ValueError."""
    found = {}
    for name, amount in words(text).items():
        try:
            value = parse_amount(name, amount)
        except QuantityError as error:
            raise ValueError(f": {name}: {error}") from None
        if name == MEMORY and (problem := gpu_mib_problem(value)):
            raise ValueError(f": {name}: {problem}")
        if not 0 < value <= MOST[name]:
            raise ValueError(f": {name}: must be from 1 to {MOST[name]}, got {value}")
        found[name] = value
    return found


def resized(pod: Mapping[str, Any], names: Nvidia) -> tuple[Container, ...]:
    """A pod's containers with the larger of the amounts they were created with and those they were
    resized to. An invalid annotation counts nothing: no agent applies it."""
    annotations = annotations_of(pod)
    return tuple(
        _one(one, annotations.get(RESIZE_PREFIX + one.name), names) for one in containers_of(pod)
    )


def _one(container: Container, text: str | None, names: Nvidia) -> Container:
    if text is None or not container.has(names.count):
        return container
    more = dict(container.amounts)
    try:
        wanted = amounts(text)
        for word, resource in ((MEMORY, names.memory), (CORES, names.cores)):
            if word in wanted:
                more[resource] = max(wanted[word], container.amount(resource))
    except ValueError:  # AskError is one
        return container
    return replace(container, amounts=more)

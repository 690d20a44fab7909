"""HAMi's `nvidia.com/vgpu-mode: mig` in the words of the kubelet: a container that asks for memory
of a card gets an instance of the smallest profile that has so much, under the profile's resource.

Which profiles there are is what nodes say that they can give. A profile's name tells its memory in
round GiB, and that is what HAMi compares, too; an instance has up to a few per cent less.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from queuecontroller.gpushares.admission.dialects import Container, limits_of
from queuecontroller.gpushares.vendors.asks import AskError
from queuecontroller.gpushares.vendors.asks import Container as Asked
from queuecontroller.gpushares.vendors.config import Nvidia
from queuecontroller.scheduler.placement.mig import RESOURCE
from queuecontroller.scheduler.placement.request import VGPU_MODE

MIG: Final = "mig"
WHOLE: Final = 100
_PLAIN: Final = re.compile(re.escape(RESOURCE) + r"([1-9])g\.([0-9]{1,3})gb")
"""Profiles with attributes (`1g.10gb.me`) are chosen by name alone."""
_SLICES: Final = 7
"""Of a card's compute; the A30's four are told by its largest profile, `4g.24gb`."""
_SMALL: Final = {6: 4, 12: 4, 24: 4}
"""Memory of the profiles of cards with four slices."""


def profiles_in(amounts: Mapping[str, Any]) -> frozenset[str]:
    """Resources of profiles among what a node has."""
    return frozenset(name for name in amounts if _PLAIN.fullmatch(name))


def wants_instances(annotations: Mapping[str, str]) -> bool:
    """Of no other mode."""
    return [one.strip() for one in annotations.get(VGPU_MODE, "").split(",")] == [MIG]


def smallest(profiles: Iterable[str], mib: int, cores: int) -> str | None:
    """The resource of the smallest one with so much memory and so many per cent of a card's
    time."""
    found = []
    for name in profiles:
        parts = _PLAIN.fullmatch(name)
        assert parts is not None
        slices, gib = int(parts[1]), int(parts[2])
        of = _SMALL.get(gib, _SLICES)
        if gib << 10 >= mib and slices * WHOLE >= cores * of:
            found.append((gib, slices, name))
    return min(found)[2] if found else None


def as_instances(
    containers: Iterable[Container],
    names: Nvidia,
    profiles: frozenset[str],
    warnings: list[str],
) -> bool:
    """Whether all that ask for parts of cards ask for instances now. Raises AskError."""
    chosen: list[tuple[Container, str, int]] = []
    for container in containers:
        read = Asked(str(container.get("name") or ""), limits_of(container))
        if not any(read.has(one) for one in names.resources):
            continue
        said = f"container {read.name}: {VGPU_MODE}: {MIG}"
        if read.amount(names.percent) and profiles:
            raise AskError(
                f"{said}: {names.percent}: is of a card that is not known yet: ask for"
                f" {names.memory}"
            )
        mib = read.amount(names.memory) * names.memory_factor
        if not mib:
            return False  # whole cards, which are in MIG mode: nobody has such
        cores = min(read.amount(names.cores), WHOLE)
        resource = smallest(profiles, mib, cores)
        if resource is None:
            have = ", ".join(sorted(one.removeprefix(RESOURCE) for one in profiles)) or "none"
            warnings.append(
                f"{said}: no node offers an instance with {mib} MiB and {cores} % of a card's"
                f" time (there are: {have}): the pod stays Pending"
            )
            return False
        count = read.amount(names.count) if read.has(names.count) else names.default_gpus or 1
        chosen.append((container, resource, count))
    for container, resource, count in chosen:
        _exchange(container, names, resource, count)
        warnings.append(
            f"{VGPU_MODE}: {MIG}: container {container.get('name')} asks for {resource}: {count}"
        )
    return bool(chosen)


def _exchange(container: Container, names: Nvidia, resource: str, count: int) -> None:
    resources = container["resources"] = dict(container.get("resources") or {})
    for kind in ("limits", "requests"):
        amounts = resources.get(kind)
        if kind == "limits" or isinstance(amounts, Mapping):
            left = {k: v for k, v in (amounts or {}).items() if k not in names.resources}
            resources[kind] = {**left, resource: str(count)}

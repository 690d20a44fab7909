"""Conversion of HAMi's `nvidia.com/vgpu-mode: mig` into the kubelet's MIG resources: a container
that requests memory of a card gets an instance of the smallest profile with that much memory, under
the profile's resource name.

The available profiles are those that nodes advertise. A profile's name gives its memory in whole
GiB, which HAMi compares as well; an instance has up to a few per cent less.
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
from sluicecommon.hami.names import VGPU_MODE

MIG: Final = "mig"
WHOLE: Final = 100
_PLAIN: Final = re.compile(re.escape(RESOURCE) + r"([1-9])g\.([0-9]{1,3})gb")
"""Profiles with attributes (`1g.10gb.me`) are chosen by name only and do not match."""
_SLICES: Final = 7
"""Compute slices of a card. The A30, which has four, is recognised by its largest profile,
`4g.24gb`."""
_SMALL: Final = {6: 4, 12: 4, 24: 4}
"""Slices of the card by a profile's memory in GiB, for cards with four slices."""


def profiles_in(amounts: Mapping[str, Any]) -> frozenset[str]:
    """Resource names of MIG profiles among a node's resources."""
    return frozenset(name for name in amounts if _PLAIN.fullmatch(name))


def wants_instances(annotations: Mapping[str, str]) -> bool:
    """True if MIG is the only mode that the annotation allows."""
    return [one.strip() for one in annotations.get(VGPU_MODE, "").split(",")] == [MIG]


def smallest(profiles: Iterable[str], mib: int, cores: int) -> str | None:
    """Resource name of the smallest profile with `mib` MiB of memory and `cores` per cent of a
    card's time; None if there is none."""
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
    """Replace requests for parts of cards by MIG instances, in place. True if all of them were
    replaced. Raises AskError."""
    chosen: list[tuple[Container, str, int]] = []
    for container in containers:
        read = Asked(str(container.get("name") or ""), limits_of(container))
        if not any(read.has(one) for one in names.resources):
            continue
        where = f"container {read.name}: {VGPU_MODE}: {MIG}"
        if read.amount(names.memory_percent) and profiles:
            raise AskError(
                f"{where}: {names.memory_percent}: is a percentage of a card that is not chosen"
                f" yet: request {names.memory}"
            )
        mib = read.amount(names.memory) * names.memory_factor
        if not mib:
            return False  # No node offers a whole card that is in MIG mode.
        cores = min(read.amount(names.cores), WHOLE)
        resource = smallest(profiles, mib, cores)
        if resource is None:
            have = ", ".join(sorted(one.removeprefix(RESOURCE) for one in profiles)) or "none"
            warnings.append(
                f"{where}: no node offers an instance with {mib} MiB and {cores} % of a card's"
                f" time (there are: {have}): the pod stays Pending"
            )
            return False
        count = read.amount(names.count) if read.has(names.count) else names.default_gpus or 1
        chosen.append((container, resource, count))
    for container, resource, count in chosen:
        _exchange(container, names, resource, count)
        warnings.append(
            f"{VGPU_MODE}: {MIG}: container {container.get('name')} requests {resource}: {count}"
        )
    return bool(chosen)


def _exchange(container: Container, names: Nvidia, resource: str, count: int) -> None:
    resources = container["resources"] = dict(container.get("resources") or {})
    for kind in ("limits", "requests"):
        amounts = resources.get(kind)
        if kind == "limits" or isinstance(amounts, Mapping):
            others = {k: v for k, v in (amounts or {}).items() if k not in names.resources}
            resources[kind] = {**others, resource: str(count)}

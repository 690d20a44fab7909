"""Translation of other schedulers' GPU requests into HAMi's resources: annotations of KAI and
Run:ai, resources of Volcano.

A fraction is a fraction of memory. Those schedulers guarantee no compute time, so the translation
requests none: `gpucores: 0`.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from typing import Any, Final

from queuecontroller.gpushares.admission.names import (
    FRACTION,
    FRACTION_CONTAINER,
    FRACTION_DEVICES,
    FRACTION_MEMORY,
    VOLCANO_ANNOTATIONS,
    VOLCANO_RESOURCES,
)
from queuecontroller.gpushares.vendors.asks import AskError, table
from queuecontroller.gpushares.vendors.config import Nvidia
from sluicecommon.reader import shown

MAX_DEVICES: Final = 64
Container = dict[str, Any]


def fractions(annotations: Mapping[str, str], containers: list[Container], names: Nvidia) -> bool:
    """Translate KAI's and Run:ai's annotations into limits of the container they name, in place.
    True if there were any. Raises AskError."""
    part, memory = annotations.get(FRACTION), annotations.get(FRACTION_MEMORY)
    if part is None and memory is None:
        for key in (FRACTION_DEVICES, FRACTION_CONTAINER):
            if key in annotations:
                raise AskError(f"{key}: means nothing without {FRACTION} or {FRACTION_MEMORY}")
        return False
    if part is not None and memory is not None:
        raise AskError(f"{FRACTION}: is given together with {FRACTION_MEMORY}: leave one out")
    container = _meant(annotations, containers)
    devices = _whole(FRACTION_DEVICES, annotations.get(FRACTION_DEVICES, "1"), MAX_DEVICES)
    for resource in names.resources:
        if resource in limits_of(container):
            key = FRACTION if part is not None else FRACTION_MEMORY
            raise AskError(
                f"{key}: container {container.get('name')} requests {resource} as well: leave one"
                " out"
            )
    limits = {names.count: devices, names.cores: 0}
    if part is not None:
        limits[names.percent] = _percent(part)
    else:
        mib = _whole(FRACTION_MEMORY, memory or "", 1 << 30)
        limits[names.memory] = -(-mib // names.memory_factor)
    set_limits(container, limits)
    return True


def _meant(annotations: Mapping[str, str], containers: list[Container]) -> Container:
    wanted = annotations.get(FRACTION_CONTAINER)
    if wanted is None:
        return containers[0]
    for one in containers:
        if one.get("name") == wanted:
            return one
    known = ", ".join(str(one.get("name")) for one in containers)
    raise AskError(f"{FRACTION_CONTAINER}: must be one of {known}, got {shown(wanted)}")


def _percent(text: str) -> int:
    """The nearest whole percentage, so that three thirds make one card."""
    try:
        part = Decimal(text.strip()) if len(text) <= 32 else Decimal("NaN")
    except InvalidOperation:
        part = Decimal("NaN")
    if not part.is_finite() or not 0 < part <= 1:
        raise AskError(f"{FRACTION}: expected a number above 0 and at most 1, got {shown(text)}")
    return max(1, int((part * 100).to_integral_value(ROUND_HALF_UP)))


def _whole(key: str, text: str, most: int) -> int:
    plain = text.strip()
    if plain.isascii() and plain.isdigit() and len(plain) <= 12 and 1 <= int(plain) <= most:
        return int(plain)
    raise AskError(f"{key}: expected a whole number from 1 to {most}, got {shown(text)}")


def volcano(annotations: dict[str, str], containers: list[Container], names: Nvidia) -> bool:
    """Rename Volcano's resources and annotations to HAMi's, in place. True if there were any.
    Raises AskError."""
    found = False
    for container in containers:
        for kind in ("limits", "requests"):
            amounts = table(container, "resources").get(kind)
            if not isinstance(amounts, dict):
                continue
            for resource, field in VOLCANO_RESOURCES.items():
                if resource not in amounts:
                    continue
                ours = getattr(names, field)
                if ours in amounts:
                    raise AskError(
                        f"container {container.get('name')}: {resource}: is requested together"
                        f" with {ours}: leave one out"
                    )
                amounts[ours] = amounts.pop(resource)
                found = True
    for theirs, ours in VOLCANO_ANNOTATIONS.items():
        if theirs in annotations and found:
            annotations.setdefault(ours, annotations[theirs])
    return found


# -- containers -----------------------------------------------------------------------------------


def limits_of(container: Mapping[str, Any]) -> dict[str, Any]:
    """The container's limits, and its requests where a resource has no limit."""
    resources = container.get("resources")
    found: dict[str, Any] = {}
    for kind in ("requests", "limits"):
        amounts = resources.get(kind) if isinstance(resources, Mapping) else None
        found |= amounts if isinstance(amounts, Mapping) else {}
    return found


def set_limits(container: Container, limits: Mapping[str, int]) -> None:
    """Set limits, and equal requests if the container has requests: for extended resources both
    must be equal."""
    resources = container["resources"] = container.get("resources") or {}
    for kind in ("limits", "requests"):
        amounts = resources.get(kind)
        if kind == "limits" or isinstance(amounts, dict):
            amounts = resources[kind] = dict(amounts or {})
            amounts |= {key: str(value) for key, value in limits.items()}

"""Devices published in ResourceSlices: the newest generation of each pool, if it is complete."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from queuecontroller.gpushares.claims.cel import Device, Quantity, quantity, version
from queuecontroller.gpushares.claims.cel_parse import CelError
from queuecontroller.scheduler.model.selectors import Taint

MAX_DEVICES: Final = 128
"""Devices per slice; the limit is the one of the Kubernetes API."""
KEEPS_AWAY: Final = ("NoSchedule", "NoExecute")
"""Effects of a device's taint by which new claims do not get it."""
_READ: Final = {"string": str, "int": int, "bool": bool}


@dataclass(frozen=True, slots=True)
class Policy:
    """Rounding of a capacity request, in thousandths."""

    default: int | None = None
    values: tuple[int, ...] = ()
    least: int | None = None
    most: int | None = None
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Published:
    device: Device
    name: str
    counters: tuple[tuple[str, int], ...]
    """Name and amount, in thousandths, that the device consumes of its card's counters."""
    policies: Mapping[tuple[str, str], Policy]
    """Policies by domain and name of a capacity."""
    node: str = ""
    """The node that it is on; empty: it may be used from several."""
    taints: tuple[Taint, ...] = ()
    """Taints that keep claims from it which do not tolerate them."""


def qualified(name: str, driver: str) -> tuple[str, str]:
    """Domain and name of an attribute or a capacity; the default domain is the driver."""
    domain, mark, rest = name.rpartition("/")
    return (domain, rest) if mark else (driver, name)


_MALFORMED: Final = (LookupError, TypeError, ValueError, ArithmeticError, AttributeError)


def published(slices: Iterable[Mapping[str, Any]], driver: str) -> tuple[Published, ...]:
    """Devices of a driver. A pool with a malformed slice is left out, because its content is
    unknown."""
    pools: dict[str, tuple[int, int, list[Mapping[str, Any]]]] = {}
    for one in slices:
        spec = one.get("spec")
        if not isinstance(spec, Mapping) or spec.get("driver") != driver:
            continue
        with contextlib.suppress(
            LookupError, TypeError, ValueError, ArithmeticError, AttributeError
        ):
            pool = spec["pool"]
            name, generation = str(pool["name"]), int(pool.get("generation", 0))
            count = int(pool.get("resourceSliceCount", 1))
            known = pools.get(name)
            if known is None or generation > known[0]:
                pools[name] = (generation, count, [spec])
            elif generation == known[0]:
                known[2].append(spec)
    found: list[Published] = []
    for _, count, specs in pools.values():
        if len(specs) != count:
            continue
        with contextlib.suppress(*_MALFORMED, CelError):
            found += [
                _device(one, driver, str(one.get("nodeName") or spec.get("nodeName") or ""))
                for spec in specs
                for one in _devices(spec)
            ]
    return tuple(found)


def _devices(spec: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list(spec.get("devices") or ())[:MAX_DEVICES]


def _device(given: Mapping[str, Any], driver: str, node: str) -> Published:
    attributes: dict[str, dict[str, Any]] = {}
    for key, value in (given.get("attributes") or {}).items():
        domain, name = qualified(key, driver)
        attributes.setdefault(domain, {})[name] = _attribute(value)
    capacity: dict[str, dict[str, Quantity]] = {}
    policies = {}
    for key, value in (given.get("capacity") or {}).items():
        domain, name = qualified(key, driver)
        capacity.setdefault(domain, {})[name] = quantity(value["value"])
        policies[domain, name] = _policy(value.get("requestPolicy") or {})
    counters = tuple(
        (str(name), quantity(counter["value"]).thousandths)
        for one in given.get("consumesCounters") or ()
        for name, counter in one["counters"].items()
    )
    shared = bool(given.get("allowMultipleAllocations"))
    taints = tuple(
        Taint(str(one["key"]), str(one.get("value") or ""), str(one["effect"]))
        for one in given.get("taints") or ()
        if one["effect"] in KEEPS_AWAY
    )
    device = Device(driver, attributes, capacity, shared)
    return Published(device, str(given["name"]), counters, policies, node, taints)


def _attribute(value: Mapping[str, Any]) -> Any:
    ((kind, found),) = value.items()
    if kind == "version":
        return version(found)
    if kind in _READ and isinstance(found, _READ[kind]):
        return found
    if isinstance(found, list):  # Later versions of the API have lists of these types.
        return [version(one) if kind == "versions" else one for one in found]
    raise ValueError(kind)


def _policy(given: Mapping[str, Any]) -> Policy:
    def read(there: Mapping[str, Any], key: str) -> int | None:
        return quantity(there[key]).thousandths if there.get(key) is not None else None

    span = given.get("validRange") or {}
    return Policy(
        default=read(given, "default"),
        values=tuple(quantity(one).thousandths for one in given.get("validValues") or ()),
        least=read(span, "min"),
        most=read(span, "max"),
        step=read(span, "step"),
    )


def rounded(thousandths: int, policy: Policy) -> int | None:
    """A request rounded as the scheduler rounds it; None if the device cannot provide it."""
    if policy.values:
        return min((one for one in policy.values if one >= thousandths), default=None)
    found = thousandths
    if policy.least is not None:
        found = max(found, policy.least)
        if policy.step:
            found = policy.least + -(-(found - policy.least) // policy.step) * policy.step
    return None if policy.most is not None and found > policy.most else found

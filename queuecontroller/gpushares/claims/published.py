"""Devices published in ResourceSlices: the newest generation of each pool, if it is complete."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from queuecontroller.gpushares.claims.cel import Device, Quantity, quantity, version
from queuecontroller.gpushares.claims.cel_parse import CelError
from queuecontroller.scheduler.model.objects import DeviceId
from queuecontroller.scheduler.model.selectors import Taint

MAX_DEVICES: Final = 128
"""Devices per slice; the limit is the one of the Kubernetes API."""
KEEPS_AWAY: Final = ("NoSchedule", "NoExecute")
"""Effects of a device's taint by which new claims do not get it."""
_MALFORMED: Final = (LookupError, TypeError, ValueError, ArithmeticError, AttributeError)
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
    counters: tuple[tuple[str, str, int], ...]
    """Set, name and amount, in thousandths, that the device consumes of its card's counters."""
    policies: Mapping[tuple[str, str], Policy]
    """Policies by domain and name of a capacity."""
    node: str = ""
    """The node that it is on; empty: it may be used from several."""
    taints: tuple[Taint, ...] = ()
    """Taints that keep claims from it which do not tolerate them."""
    pool: str = ""
    totals: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """The pool's counters, by set and name, in thousandths."""

    @property
    def identity(self) -> DeviceId:
        return (self.device.driver, self.pool, self.name)


@dataclass(frozen=True, slots=True)
class TaintRule:
    """A DeviceTaintRule: its taint counts for all devices that have these names."""

    taint: Taint
    driver: str | None = None
    pool: str | None = None
    device: str | None = None

    def selects(self, driver: str, pool: str, device: str) -> bool:
        wanted = (self.driver, self.pool, self.device)
        return all(
            one is None or one == name
            for one, name in zip(wanted, (driver, pool, device), strict=True)
        )


def taint_rules(documents: Iterable[Mapping[str, Any]]) -> tuple[TaintRule, ...]:
    """Rules that keep claims away. One without a selector selects nothing, one with an empty
    selector every device; a malformed rule is left out."""
    found = []
    for document in documents:
        with contextlib.suppress(*_MALFORMED):
            spec = document["spec"]
            selector = spec.get("deviceSelector")
            if isinstance(selector, Mapping) and spec["taint"]["effect"] in KEEPS_AWAY:
                names = (selector.get(key) for key in ("driver", "pool", "device"))
                found.append(TaintRule(_taint(spec["taint"]), *names))
    return tuple(found)


def _taint(given: Mapping[str, Any]) -> Taint:
    return Taint(str(given["key"]), str(given.get("value") or ""), str(given["effect"]))


def qualified(name: str, driver: str) -> tuple[str, str]:
    """Domain and name of an attribute or a capacity; the default domain is the driver."""
    domain, mark, rest = name.rpartition("/")
    return (domain, rest) if mark else (driver, name)


def published(
    slices: Iterable[Mapping[str, Any]],
    driver: str | None = None,
    rules: Sequence[TaintRule] = (),
) -> tuple[Published, ...]:
    """Devices of a driver (None: of all), with the taints of the rules. A pool with a malformed
    slice is left out, because its content is unknown."""
    pools: dict[tuple[str, str], tuple[int, int, list[Mapping[str, Any]]]] = {}
    for one in slices:
        spec = one.get("spec")
        if not isinstance(spec, Mapping) or driver not in (None, spec.get("driver")):
            continue
        with contextlib.suppress(*_MALFORMED):
            pool = spec["pool"]
            key = (str(spec["driver"]), str(pool["name"]))
            generation = int(pool.get("generation", 0))
            count = int(pool.get("resourceSliceCount", 1))
            known = pools.get(key)
            if known is None or generation > known[0]:
                pools[key] = (generation, count, [spec])
            elif generation == known[0]:
                known[2].append(spec)
    found: list[Published] = []
    for (owner, name), (_, count, specs) in pools.items():
        if len(specs) != count:
            continue
        with contextlib.suppress(*_MALFORMED, CelError):
            totals = {
                (str(one["name"]), str(counter)): quantity(value["value"]).thousandths
                for spec in specs
                for one in spec.get("sharedCounters") or ()
                for counter, value in one["counters"].items()
            }
            found += [
                _device(one, _Pool(owner, name, totals, rules), spec)
                for spec in specs
                for one in _devices(spec)
            ]
    return tuple(found)


def _devices(spec: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list(spec.get("devices") or ())[:MAX_DEVICES]


@dataclass(frozen=True, slots=True)
class _Pool:
    driver: str
    name: str
    totals: Mapping[tuple[str, str], int]
    rules: Sequence[TaintRule]


def _device(given: Mapping[str, Any], pool: _Pool, spec: Mapping[str, Any]) -> Published:
    driver, device_name = pool.driver, str(given["name"])
    node = str(given.get("nodeName") or spec.get("nodeName") or "")
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
        (str(one["counterSet"]), str(name), quantity(counter["value"]).thousandths)
        for one in given.get("consumesCounters") or ()
        for name, counter in one["counters"].items()
    )
    shared = bool(given.get("allowMultipleAllocations"))
    taints = (
        *(_taint(one) for one in given.get("taints") or () if one["effect"] in KEEPS_AWAY),
        *(one.taint for one in pool.rules if one.selects(driver, pool.name, device_name)),
    )
    device = Device(driver, attributes, capacity, shared)
    return Published(device, device_name, counters, policies, node, taints, pool.name, pool.totals)


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

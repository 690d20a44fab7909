"""`ShareConfig` of `sluice.dev/v1`: how a claim, or its DeviceClass, configures its shares.

    config:
    - opaque:
        driver: sluice.dev
        parameters:
          apiVersion: sluice.dev/v1
          kind: ShareConfig
          policy: elastic
          priority: 10
          ceilingPercent: 60
          gang: false

Kubernetes does not validate it, so everything is checked here, and all mistakes are reported at
once. Entries are applied field by field: the claim's in their order, then the class's, so that a
field which the class has is the administrator's to set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from nodeagent.ports.dra.claims import DRIVER, NoAllocation, ShareConfig
from nodeagent.units import MAX_PRIORITY, SharePolicy
from sluicecommon.settings import nearest

API_VERSION: Final = f"{DRIVER}/v1"
KIND: Final = "ShareConfig"
FIELDS: Final = ("apiVersion", "kind", "policy", "priority", "paused", "ceilingPercent", "gang")


def merged(entries: Sequence[Any], request: str, parent: str) -> ShareConfig:
    """Merge the configurations that apply to a request, or to `parent`, the request that it is an
    alternative of, from `status.allocation.devices.config`. Raises NoAllocation."""
    found = ShareConfig()
    ordered = sorted(enumerate(entries), key=lambda one: (_from_class(one[1]), one[0]))
    for index, entry in ordered:
        where = f"config[{index}]"
        if not isinstance(entry, Mapping):
            raise NoAllocation(f"{where}: not an object")
        requests = entry.get("requests") or ()
        if requests and request not in requests and parent not in requests:
            continue
        opaque = entry.get("opaque")
        if isinstance(opaque, Mapping) and opaque.get("driver") == DRIVER:
            parameters = opaque.get("parameters")
            found = apply(found, parameters, f"{where}.opaque.parameters")
            if _from_class(entry) and isinstance(parameters, Mapping) and "priority" in parameters:
                found = replace(found, class_priority=True)
    return found


def _from_class(entry: Any) -> bool:
    return isinstance(entry, Mapping) and entry.get("source") == "FromClass"


def apply(config: ShareConfig, parameters: Any, where: str) -> ShareConfig:
    """Apply `parameters` over `config`. Raises NoAllocation with every mistake."""
    if not isinstance(parameters, Mapping):
        raise NoAllocation(f"{where}: not an object")
    version, kind = parameters.get("apiVersion"), parameters.get("kind")
    if version != API_VERSION:
        raise NoAllocation(
            f"{where}.apiVersion: {shown(version)}: this release supports {API_VERSION} only"
        )
    if kind != KIND:
        raise NoAllocation(f"{where}.kind: must be {KIND}, got {shown(kind)}")
    problems = [
        f"{where}.{_plain(key)}: unknown field{nearest(str(key), FIELDS)}"
        for key in parameters
        if key not in FIELDS
    ]
    given: dict[str, Any] = {}
    if "policy" in parameters:
        try:
            given["policy"] = SharePolicy(parameters["policy"])
        except ValueError:
            problems.append(
                f"{where}.policy: must be hard, elastic or exclusive,"
                f" got {shown(parameters['policy'])}"
            )
    for key in ("paused", "gang"):
        if key in parameters:
            given[key] = parameters[key]
            if not isinstance(given[key], bool):
                problems.append(f"{where}.{key}: must be true or false, got {shown(given[key])}")
    for key, name, low, high in (
        ("priority", "priority", -MAX_PRIORITY, MAX_PRIORITY),
        ("ceilingPercent", "ceiling_percent", 0, 100),
    ):
        if key in parameters:
            value = given[name] = parameters[key]
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                problems.append(
                    f"{where}.{key}: must be a whole number from {low} to {high},"
                    f" got {shown(value)}"
                )
    if problems:
        raise NoAllocation("; ".join(problems))
    return replace(config, **given)


def shown(value: Any) -> str:
    """Format a value for a message, whatever it contains."""
    return "not set" if value is None else repr(_plain(value))


def _plain(value: Any) -> str:
    return "".join(c if c.isprintable() else "?" for c in str(value)[:80])

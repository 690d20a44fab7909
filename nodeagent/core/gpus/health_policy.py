"""Meaning of each sign of a sick GPU, as data: the shipped table, and an operator's changes to it.

Sources disagree about single XIDs (NVIDIA's catalogue, NVIDIA's device plugin, gpud), so the
decision is configuration, not code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from nodeagent.units import NS_PER_S
from sluicecommon.settings import ConfigError, nearest


class Consequence(StrEnum):
    IGNORE = "ignore"
    """The error has no meaning for the GPU's health."""
    APPLICATION = "application"
    """A program's own fault: it is counted, and the GPU is unaffected."""
    DEGRADED = "degraded"
    """The GPU works, and is offered after the others."""
    RESET = "reset"
    """Not offered until it has been reset."""
    LOST = "lost"
    """Not offered until it is on the bus again."""


CONDITIONS: Final = (
    "ecc_uncorrected",
    "row_remap_pending",
    "row_remap_failed",
    "thermal",
    "power_brake",
    "hw_slowdown",
)
VERDICTS: Final = (
    "none",
    "reset",
    "reboot",
    "drain",
    "drain_and_reset",
    "recover_imex_domain",
    "bus_reset",
    "system_reboot",
    "unknown",
)
"""NVML's recovery actions, by the names of the readings."""
LARGEST_XID: Final = 9999


@dataclass(frozen=True, slots=True)
class XidRule:
    consequence: Consequence
    name: str = ""


@dataclass(frozen=True, slots=True)
class HealthPolicy:
    """The complete policy, see `parse_policy`."""

    xids: Mapping[int, XidRule] = field(default_factory=dict)
    unknown_xid: Consequence = Consequence.DEGRADED
    """Consequence of a code that no table has: an unknown defect."""
    verdicts: Mapping[str, Consequence] = field(
        default_factory=lambda: {"none": Consequence.IGNORE}
    )
    conditions: Mapping[str, Consequence] = field(
        default_factory=lambda: dict.fromkeys(CONDITIONS, Consequence.IGNORE)
    )
    good_ns: int = 60 * NS_PER_S
    """How long a GPU that was not offered must be fit."""
    strain_ns: int = 60 * NS_PER_S
    """How long thermal or power throttling must last before it counts."""
    unread_ns: int = 30 * NS_PER_S
    """How long a GPU may be unreadable before it is unhealthy."""
    falls_per_hour: int = 3
    """Failures within an hour above which the GPU must be fit for flap_hold_ns."""
    flap_hold_ns: int = 3600 * NS_PER_S

    def xid(self, code: int) -> XidRule:
        return self.xids.get(code) or XidRule(self.unknown_xid)


def parse_policy(document: Mapping[str, object], base: HealthPolicy | None = None) -> HealthPolicy:
    """Read a parsed TOML document over `base`. Raises ConfigError with all mistakes."""
    problems: list[str] = []
    policy = base or HealthPolicy()
    xids = dict(policy.xids)
    unknown = policy.unknown_xid
    verdicts = dict(policy.verdicts)
    conditions = dict(policy.conditions)
    for section, table in document.items():
        if section not in ("xid", "verdict", "condition"):
            problems.append(
                f"[{section}]: no such section{nearest(section, ('xid', 'verdict', 'condition'))}"
            )
        elif not isinstance(table, Mapping):
            problems.append(f"{section}: must be a section, [{section}]")
        elif section == "xid":
            unknown = _xids(table, xids, unknown, problems)
        else:
            known, into = (VERDICTS, verdicts) if section == "verdict" else (CONDITIONS, conditions)
            for key, value in table.items():
                if key not in known:
                    problems.append(f"{section}.{key}: no such key{nearest(key, known)}")
                else:
                    into[key] = _consequence(f"{section}.{key}", value, problems)
    if problems:
        raise ConfigError(problems)
    return replace(policy, xids=xids, unknown_xid=unknown, verdicts=verdicts, conditions=conditions)


def _xids(
    table: Mapping[str, Any], xids: dict[int, XidRule], unknown: Consequence, problems: list[str]
) -> Consequence:
    for key, value in table.items():
        where = f"xid.{key}"
        if key == "unknown":
            unknown = _consequence(where, value, problems)
        elif not key.isdecimal() or not 1 <= int(key) <= LARGEST_XID:
            problems.append(f"{where}: must be the number of an XID, such as 79, or `unknown`")
        elif isinstance(value, str):
            name = xids[int(key)].name if int(key) in xids else ""
            xids[int(key)] = XidRule(_consequence(where, value, problems), name)
        elif isinstance(value, Mapping) and value.keys() <= {"means", "name"} and "means" in value:
            name = str(value.get("name", ""))
            xids[int(key)] = XidRule(_consequence(f"{where}.means", value["means"], problems), name)
        else:
            problems.append(f'{where}: must be {{ means = "…", name = "…" }}, not {value!r}')
    return unknown


def _consequence(where: str, value: object, problems: list[str]) -> Consequence:
    if isinstance(value, str) and value in list(Consequence):
        return Consequence(value)
    problems.append(f"{where}: must be one of {', '.join(Consequence)}, got {value!r}")
    return Consequence.IGNORE

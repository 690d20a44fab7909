"""Decides which changes of the configuration a running daemon applies, and which wait for a
restart.

Each key declares whether it is live. Nothing else is applied, so that the daemon always runs with a
configuration with which it could have started.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nodeagent.core.gpus.health_policy import HealthPolicy
from nodeagent.settings.daemon import SECTIONS, Settings
from nodeagent.settings.kubelet import Effective, KubeletConfig
from sluicecommon.settings import known_fields, live_keys


@dataclass(frozen=True, slots=True)
class Loaded:
    """The complete configuration of one node."""

    settings: Settings
    node: str
    """Name of this node."""
    kubelet: Effective
    health: HealthPolicy
    files: tuple[Path, ...]
    """Files that were read."""
    watched: tuple[Path, ...]
    """Those files, and the ones that would be read if they existed."""

    @property
    def refused(self) -> bool:
        """True if the daemon would not start with it."""
        return self.kubelet.config.enabled and bool(self.kubelet.problems)


@dataclass(frozen=True, slots=True)
class Running:
    """The configuration in force."""

    settings: Settings
    kubelet: KubeletConfig
    health: HealthPolicy = field(default_factory=HealthPolicy)


@dataclass(frozen=True, slots=True)
class Merged:
    running: Running
    changed: tuple[str, ...]
    """section.key of each change that was applied."""
    waiting: tuple[str, ...]
    """section.key of each change that needs a restart."""


def merge(running: Running, wanted: Running) -> Merged:
    changed: list[str] = []
    waiting: list[str] = []
    sections: dict[str, Any] = {}
    kubelet = running.kubelet
    for name, kind in SECTIONS.items():
        if kind is KubeletConfig:
            kubelet = replace(
                kubelet, **_taken(name, kind, kubelet, wanted.kubelet, changed, waiting)
            )
            continue
        here = getattr(running.settings, name)
        there = getattr(wanted.settings, name)
        sections[name] = replace(here, **_taken(name, kind, here, there, changed, waiting))
    if wanted.health != running.health and not any(c.startswith("health.") for c in changed):
        changed.append("the table of health.policy")
    settings = replace(running.settings, **sections)
    return Merged(
        Running(settings, kubelet, wanted.health),
        tuple(changed),
        tuple(waiting),
    )


def _taken(
    section: str,
    kind: type[Any],
    here: object,
    there: object,
    changed: list[str],
    waiting: list[str],
) -> Mapping[str, Any]:
    live = live_keys(kind)
    values: dict[str, Any] = {}
    for key in known_fields(kind):
        value = getattr(there, key)
        if value == getattr(here, key):
            continue
        if key in live:
            values[key] = value
            changed.append(f"{section}.{key}")
        else:
            waiting.append(f"{section}.{key}")
    return values

"""Which changes of the configuration a running daemon takes over, and which wait for a restart.

A key says itself whether it is live; nothing else is ever taken, so that what runs is always one
configuration somebody could have started with.
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
    """Everything the configuration says, for one node."""

    settings: Settings
    node: str
    """What this node is called."""
    kubelet: Effective
    health: HealthPolicy
    files: tuple[Path, ...]
    """What was read."""
    watched: tuple[Path, ...]
    """The same, and what would be read if it were there."""

    @property
    def refused(self) -> bool:
        """The daemon would not start with it."""
        return self.kubelet.config.enabled and bool(self.kubelet.problems)


@dataclass(frozen=True, slots=True)
class Running:
    """The configuration that counts now."""

    settings: Settings
    kubelet: KubeletConfig
    health: HealthPolicy = field(default_factory=HealthPolicy)


@dataclass(frozen=True, slots=True)
class Merged:
    running: Running
    changed: tuple[str, ...]
    """section.key of what was taken over."""
    waiting: tuple[str, ...]
    """section.key of what the files say otherwise and only a restart brings."""


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

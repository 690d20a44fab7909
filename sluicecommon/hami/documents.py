"""Recognizes HAMi's own documents: ConfigMaps with embedded texts, the bare files, pods.

The kind of a document is recognized by its content; its keys are interpreted by its readers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sluicecommon.hami.sections import VENDORS
from sluicecommon.settings import ConfigError


class PartKind(StrEnum):
    DEVICE_CONFIG = "device-config.yaml"
    NODE_CONFIG = "config.json"
    POD = "pod"


@dataclass(frozen=True, slots=True)
class HamiPart:
    """One document of HAMi's, parsed."""

    kind: PartKind
    source: str
    """File, and name within it, for messages."""
    document: Mapping[str, Any]


def split(source: str, document: object, parse: Callable[[str], object]) -> list[HamiPart]:
    """The parts of a document: a ConfigMap with embedded texts, one of the bare files, or pods.
    `parse` reads a text of YAML or JSON and raises ValueError. Raises ConfigError."""
    if not isinstance(document, Mapping):
        raise ConfigError([f"{source}: contains no HAMi configuration: {short(document)}"])
    kind = document.get("kind")
    if kind == "ConfigMap":
        return _split_config_map(source, document, parse)
    if kind == "List":
        items = document.get("items") or []
        return [part for item in items for part in split(source, item, parse)]
    if pod_spec(document) is not None:
        return [HamiPart(PartKind.POD, source, document)]
    if "nodeconfig" in {str(key).lower() for key in document}:
        return [HamiPart(PartKind.NODE_CONFIG, source, document)]
    if "nvidia" in document or document.keys() & VENDORS.keys():
        return [HamiPart(PartKind.DEVICE_CONFIG, source, document)]
    what = f"kind {kind}" if kind else f"the keys {', '.join(map(str, document)) or '(none)'}"
    raise ConfigError(
        [
            f"{source}: expected a ConfigMap, HAMi's device-config.yaml (nvidia: …) or its"
            f" config.json (nodeconfig: …), got {what}"
        ]
    )


def _split_config_map(
    source: str, document: Mapping[str, Any], parse: Callable[[str], object]
) -> list[HamiPart]:
    data = document.get("data")
    parts = []
    for name, text in (data if isinstance(data, Mapping) else {}).items():
        if name not in (PartKind.DEVICE_CONFIG, PartKind.NODE_CONFIG):
            continue
        where = f"{source}: {name}"
        try:
            inner = parse(text) if isinstance(text, str) else text
        except ValueError as error:
            raise ConfigError([f"{where}: {error}"]) from error
        if not isinstance(inner, Mapping):
            raise ConfigError([f"{where}: must be a mapping, got {short(inner)}"])
        parts.append(HamiPart(PartKind(name), where, inner))
    if not parts:
        have = ", ".join(map(str, data)) if isinstance(data, Mapping) and data else "nothing"
        raise ConfigError(
            [
                f"{source}: a ConfigMap without device-config.yaml or config.json; its data has"
                f" {have}"
            ]
        )
    return parts


def pod_spec(document: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The pod spec of a Pod, or of an object with a pod template."""
    own = document.get("spec")
    if not isinstance(own, Mapping):
        return None
    spec: Mapping[str, Any] = own
    if document.get("kind") == "Pod":
        return spec
    for _ in range(2):  # A CronJob has its pod template within a job template.
        inner = spec.get("template") or spec.get("jobTemplate")
        if not isinstance(inner, Mapping) or not isinstance(inner.get("spec"), Mapping):
            return None
        spec = inner["spec"]
        if "containers" in spec:
            return spec
    return None


def short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."

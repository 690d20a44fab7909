"""Reads HAMi's device-config.yaml and merges the controller's settings into it."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from queuecontroller.gpushares.admission import Rules, VisibleDevices
from queuecontroller.gpushares.vendors.config import DeviceConfig, read_device_config
from queuecontroller.server.config import ConfigError, ExtenderSettings, SharesSettings
from sluicecommon import yaml_text
from sluicecommon.hami.documents import PartKind, split

UNSAID: Final = ExtenderSettings()
NAMED: Final = {
    "count": "resource_count",
    "memory": "resource_memory",
    "memory_percent": "resource_memory_percentage",
    "cores": "resource_cores",
}
log = logging.getLogger(__name__)


def rules_of(given: SharesSettings, extender: ExtenderSettings = UNSAID) -> Rules:
    """The admission rules by HAMi's file, if one is given; resource names in the settings override
    the file's. Raises ConfigError, OSError."""
    devices = DeviceConfig()
    if given.hami_devices:
        devices = read_devices(Path(given.hami_devices))
        for warning in devices.warnings:
            log.warning("%s", warning)
    changed = {
        name: chosen
        for name, setting in NAMED.items()
        if (chosen := getattr(extender, setting)) != getattr(UNSAID, setting)
    }
    devices = replace(devices, nvidia=replace(devices.nvidia, **changed))
    return Rules(
        devices,
        given.scheduler,
        frozenset(given.replaced_schedulers),
        frozenset({*given.served_schedulers, given.scheduler} - {""}),
        frozenset(given.writers),
        given.as_claims,
        VisibleDevices(given.visible_devices),
    )


def read_devices(path: Path) -> DeviceConfig:
    """The device configuration in a file. Raises ConfigError, OSError."""
    documents: dict[str, Any] = {}
    try:
        found = yaml_text.read_all(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError([f"{path}: {error}"]) from error
    for document in found:
        for part in split(str(path), document, yaml_text.read) if document is not None else ():
            if part.kind is PartKind.DEVICE_CONFIG:
                documents |= part.document
    if not documents:
        raise ConfigError([f"{path}: does not contain HAMi's device-config.yaml"])
    return read_device_config(documents, str(path))

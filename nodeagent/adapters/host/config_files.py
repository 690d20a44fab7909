"""Reads the configuration's files: ours, and HAMi's beside it.

An error in any of them is reported with the file's name, and nothing is applied in part.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

import nodeagent
from nodeagent.core.gpus.health_policy import HealthPolicy, parse_policy
from nodeagent.core.reload import Loaded
from nodeagent.settings import hami as hami_config
from nodeagent.settings import hami_pods
from nodeagent.settings.daemon import ConfigError, HealthSettings, Settings, parse
from nodeagent.settings.kubelet import RESOURCE_KEYS, effective
from nodeagent.units import NS_PER_S
from sluicecommon import yaml_text
from sluicecommon.hami.documents import HamiPart, split

DEFAULT_CONFIG: Final = Path("/etc/sluice/sluice.toml")
SHIPPED_POLICY: Final = Path(nodeagent.__file__).parent / "data" / "xid.toml"
LARGEST_BYTES: Final = 4 << 20
"""Bytes; four times the maximum of a ConfigMap."""


def load(path: Path | None, host: str, node: str = "", hami: Iterable[Path] = ()) -> Loaded:
    """The configuration. `path` None is the default file, if it exists. The node's name is `node`,
    otherwise queue.node_name, otherwise `host`. `hami` overrides kubelet.hami. Raises
    ConfigError."""
    watched = path or DEFAULT_CONFIG
    path = path if path is not None or not DEFAULT_CONFIG.exists() else DEFAULT_CONFIG
    settings = load_settings(path)
    node = node or settings.queue.node_name or host
    named = settings.kubelet.values.get("hami", ())
    hami_files = list(dict.fromkeys([*map(Path, named), *hami]))
    parts: list[HamiPart] = []
    problems: list[str] = []
    for file in hami_files:
        try:
            parts += read_hami(file)
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    reading = hami_config.read(parts, node)
    found = effective(
        settings.kubelet, reading.layers, node, settings.grants.slots_per_gpu, reading.warnings
    )
    ours = [getattr(found.config, key) for key in RESOURCE_KEYS]
    found = replace(found, warnings=(*found.warnings, *hami_pods.review(parts, ours)))
    files = list(hami_files)
    if settings.health.policy:
        files.append(Path(settings.health.policy))
    own = [path] if path is not None else []
    return Loaded(
        settings, node, found, load_health(settings.health), (*own, *files), (watched, *files)
    )


def load_health(settings: HealthSettings) -> HealthPolicy:
    """The shipped health table with the changes of an operator's file. Raises ConfigError."""
    policy = _read_policy(SHIPPED_POLICY, HealthPolicy())
    if settings.policy:
        policy = _read_policy(Path(settings.policy), policy)
    return replace(
        policy,
        good_ns=int(settings.good_s * NS_PER_S),
        strain_ns=int(settings.strain_s * NS_PER_S),
        unread_ns=int(settings.unread_s * NS_PER_S),
        falls_per_hour=settings.falls_per_hour,
        flap_hold_ns=int(settings.flap_hold_s * NS_PER_S),
    )


def _read_policy(path: Path, base: HealthPolicy) -> HealthPolicy:
    try:
        return parse_policy(_toml(path), base)
    except ConfigError as error:
        named = [p if p.startswith(str(path)) else f"{path}: {p}" for p in error.problems]
        raise ConfigError(named) from error


def load_settings(path: Path | None) -> Settings:
    """The settings of our file alone. Raises ConfigError."""
    if path is None:
        return Settings()
    document = _toml(path)
    try:
        return parse(document)
    except ConfigError as error:
        raise ConfigError([f"{path}: {problem}" for problem in error.problems]) from error


def read_hami(path: Path) -> list[HamiPart]:
    """HAMi's configuration. Raises ConfigError."""
    try:
        documents = yaml_text.read_all(_text(path))
    except ValueError as error:
        raise ConfigError([f"{path}: {error}"]) from error
    parts = [
        part
        for document in documents
        if document is not None
        for part in split(str(path), document, yaml_text.read)
    ]
    if not parts:
        raise ConfigError([f"{path}: is empty"])
    return parts


def _toml(path: Path) -> dict[str, object]:
    """A parsed TOML file. Raises ConfigError."""
    try:
        return tomllib.loads(_text(path))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError([f"{path}: not TOML: {error}"]) from error


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_BYTES + 1)
        if len(data) > LARGEST_BYTES:
            raise ConfigError([f"{path}: is larger than {LARGEST_BYTES >> 20} MiB"])
        return data.decode("utf-8")
    except OSError as error:
        raise ConfigError([f"{path}: {error.strerror}"]) from error
    except UnicodeDecodeError as error:
        raise ConfigError([f"{path}: not UTF-8: {error.reason} at byte {error.start}"]) from error

"""The configuration as files: ours, and HAMi's beside it.

A mistake in any of them is told with the file's name; nothing is half read.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import yaml

from nodeagent import hami_config, hami_pods
from nodeagent.config import ConfigError, Settings, parse
from nodeagent.hami_config import HamiPart
from nodeagent.kubelet_config import RESOURCE_KEYS, Effective, effective

DEFAULT_CONFIG: Final = Path("/etc/sluice/sluice.toml")
LARGEST_BYTES: Final = 4 << 20
"""Four times what a ConfigMap can hold."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """Everything the configuration says, for one node."""

    settings: Settings
    node: str
    """What this node is called."""
    kubelet: Effective
    files: tuple[Path, ...]
    """What was read."""
    watched: tuple[Path, ...]
    """The same, and what would be read if it were there."""

    @property
    def refused(self) -> bool:
        """The daemon would not start with it."""
        return self.kubelet.config.enabled and bool(self.kubelet.problems)


def load(path: Path | None, host: str, node: str = "", hami: Iterable[Path] = ()) -> Loaded:
    """`path` None: the default one, if it is there. The node is `node`, else queue.node_name, else
    `host`. `hami` comes after kubelet.hami. Raises ConfigError."""
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
    own = [path] if path is not None else []
    return Loaded(settings, node, found, (*own, *hami_files), (watched, *hami_files))


def load_settings(path: Path | None) -> Settings:
    """The file of ours alone. Raises ConfigError."""
    if path is None:
        return Settings()
    text = _text(path)
    try:
        return parse(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([f"{path}: not TOML: {error}"]) from error
    except ConfigError as error:
        raise ConfigError([f"{path}: {problem}" for problem in error.problems]) from error


def read_hami(path: Path) -> list[HamiPart]:
    """Raises ConfigError."""
    try:
        documents = list(yaml.safe_load_all(_text(path)))
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError([f"{path}: not YAML or JSON: {_one_line(error)}"]) from error
    parts = [
        part
        for document in documents
        if document is not None
        for part in hami_config.split(str(path), document, _parse)
    ]
    if not parts:
        raise ConfigError([f"{path}: is empty"])
    return parts


def _parse(text: str) -> object:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"not YAML or JSON: {_one_line(error)}") from error


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


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())

"""`sluice config check`: the effective configuration of a node, the source of each value, and the
keys that have no effect.

Exit status: 0 the daemon can serve so, 2 it would refuse.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from nodeagent.adapters.host.config_files import load
from nodeagent.cli.session import complain, print_json
from nodeagent.core.reload import Loaded
from nodeagent.paths import host_name
from nodeagent.settings.daemon import SECTIONS, ConfigError
from nodeagent.settings.kubelet import DEFAULTS, KubeletConfig

EXIT_MISTAKES = 2


def config(options: argparse.Namespace, environment: dict[str, str]) -> int:
    try:
        loaded = load(
            Path(options.config) if options.config else None,
            host=host_name(environment),
            node=options.node,
            hami=[Path(name).absolute() for name in options.hami],
        )
    except ConfigError as error:
        if options.json:
            print_json({"problems": error.problems})
        for problem in error.problems:
            complain(f"config: {problem}")
        return EXIT_MISTAKES
    if options.json:
        print_json(as_plain(loaded))
    else:
        print("\n".join(lines(loaded)))
    for problem in loaded.kubelet.problems:
        complain(f"config: {problem}")
    return EXIT_MISTAKES if loaded.kubelet.problems else 0


def as_plain(loaded: Loaded) -> dict[str, Any]:
    """JSON-ready."""
    return {
        "node": loaded.node,
        "files": [str(file) for file in loaded.files],
        "settings": {
            section: {
                key: {"value": value, "by": by} for key, value, by in _values(loaded, section)
            }
            for section in SECTIONS
        },
        "warnings": list(loaded.kubelet.warnings),
        "problems": list(loaded.kubelet.problems),
    }


def lines(loaded: Loaded) -> Iterator[str]:
    """The effective configuration as a TOML document, with the source of each value."""
    yield f"# node {loaded.node}; read: {', '.join(map(str, loaded.files)) or 'no file'}"
    for section in SECTIONS:
        yield f"\n[{section}]"
        for key, value, by in _values(loaded, section):
            text = f"{key} = {json.dumps(value, ensure_ascii=False)}"
            yield text if by == DEFAULTS else f"{text}  # {by}"
    if loaded.kubelet.warnings:
        yield ""
    for warning in loaded.kubelet.warnings:
        yield f"# warning: {warning}"


def _values(loaded: Loaded, section: str) -> Iterator[tuple[str, Any, str]]:
    kind = SECTIONS[section]
    kubelet = kind is KubeletConfig
    here = loaded.kubelet.config if kubelet else getattr(loaded.settings, section)
    for one in fields(kind):
        value = getattr(here, one.name)
        if kubelet:
            by = loaded.kubelet.sources[one.name]
        else:
            by = DEFAULTS if value == one.default else "the file"
        yield one.name, list(value) if isinstance(value, tuple) else value, by

"""The product's version, in a checkout and in an installed package."""

from __future__ import annotations

from functools import cache
from importlib import metadata
from pathlib import Path


@cache
def version() -> str:
    checkout = Path(__file__).resolve().parent.parent
    if (checkout / "meson.build").is_file() and (checkout / "VERSION").is_file():
        return (checkout / "VERSION").read_text(encoding="ascii").strip()
    try:
        return metadata.version("sluice")
    except metadata.PackageNotFoundError:
        return "unknown"

"""The product's version, in a checkout and in an installed package."""

from __future__ import annotations

from functools import cache
from pathlib import Path


@cache
def version() -> str:
    """The version in the file VERSION, which an installed package has beside its modules."""
    package = Path(__file__).resolve().parent
    for place in (package, package.parent):
        try:
            return (place / "VERSION").read_text(encoding="ascii").strip()
        except OSError:
            continue
    return "unknown"

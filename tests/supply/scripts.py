"""The scripts of packaging/ as modules; its directories are no packages, and its name is another one's."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

from tests.kit.places import REPO


def script(name: str) -> ModuleType:
    directory = str(next((REPO / "packaging").glob(f"*/{name}.py")).parent)
    if directory not in sys.path:
        sys.path.insert(0, directory)
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(directory)

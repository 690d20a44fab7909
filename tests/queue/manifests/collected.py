"""The example manifests of this repository, by folder."""

from __future__ import annotations

from tests.kit.places import REPO

FOLDER = REPO / "examples"
SETS = sorted(path for path in FOLDER.glob("*") if path.is_dir())

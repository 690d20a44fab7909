"""Manifests that were collected from users of Kueue and HAMi, by sets."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

BESIDE = Path(__file__).resolve().parents[4] / "shared" / "manifests"
FOLDER = Path(os.environ.get("SLUICE_MANIFESTS") or BESIDE)
SETS = sorted(path for path in FOLDER.glob("*") if path.is_dir())
needs_manifests = pytest.mark.skipif(
    not SETS, reason=f"no manifests in {FOLDER}; set SLUICE_MANIFESTS"
)

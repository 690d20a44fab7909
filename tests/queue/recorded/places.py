"""Where recorded runs of Kueue lie."""

from __future__ import annotations

import os
from pathlib import Path

BESIDE = Path(__file__).resolve().parents[4] / "shared" / "conformance"
FOLDER = Path(os.environ.get("SLUICE_CONFORMANCE") or BESIDE)

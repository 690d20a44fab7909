"""Where the recorded decisions and runs of Kueue lie; data/README.md says what they are."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "data"

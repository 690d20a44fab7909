"""The `sluice` command."""

from __future__ import annotations

from nodeagent.cli.main import main

__all__ = ["main"]

"""The `sluice-queue` command; each verb is a module of its own, see main.py."""

from __future__ import annotations

from queuecontroller.cli.main import main

__all__ = ["main"]

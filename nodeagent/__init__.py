"""The node side of Sluice: one daemon per machine and the `sluice` command."""

from __future__ import annotations

from nodeagent.native import version

__version__ = version()

"""`python -m nodeagent.cli`: the `sluice` command where no entry point is installed."""

from __future__ import annotations

import sys

from nodeagent.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

"""`python -m queuecontroller`: the `sluice-queue` command where no entry point is installed."""

from __future__ import annotations

import sys

from queuecontroller.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

"""Process of one scene: `python -m tests.gpu.scene NAME --out DIR`; tests/gpu/budget.py starts it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.gpu.plan import RUNS
from tests.gpu.stage import stage


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.gpu.scene", description=__doc__)
    parser.add_argument("name", choices=list(RUNS))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--simulate", default="")
    parser.add_argument("--card", default="")
    options = parser.parse_args()
    with stage(options.name, options.out, options.scale, options.simulate, options.card) as made:
        RUNS[options.name](made)
    return 0


if __name__ == "__main__":
    sys.exit(main())

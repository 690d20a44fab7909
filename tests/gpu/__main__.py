"""Promises and measurements on a real card, most valuable first, within a budget of seconds.

Every result is a line of DIR/rows.jsonl at once and DIR/facts.json is written again after each scene, so a run that is
cut short keeps what it measured. A kernel's length is not known on a card, only that it does the same work each time:
shares are launches with a limit over launches without one, measured in the same run.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from tests.gpu.budget import FULL_S, Scene, play_all
from tests.gpu.plan import SCENES
from tests.gpu.rows import ROWS
from tests.kit.places import BUILD, REPO

SIMULATED = "h200-141gb"
DEFAULT_OUT = BUILD / "gpu"


def card() -> str:
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[0].strip()


def chosen(names: str) -> list[Scene]:
    """Scenes by name or letter, in the plan's order. Raises ValueError for one that does not exist."""
    wanted = set(names.split(",")) if names else {scene.name for scene in SCENES}
    unknown = wanted - {scene.name for scene in SCENES} - {scene.letter for scene in SCENES}
    if unknown:
        raise ValueError(
            f"no scene {', '.join(sorted(unknown))}; there are"
            f" {', '.join(f'{scene.letter} {scene.name}' for scene in SCENES)}"
        )
    return [scene for scene in SCENES if wanted & {scene.name, scene.letter}]


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests/gpu/run", description=__doc__)
    parser.add_argument(
        "--budget",
        metavar="SECONDS",
        type=float,
        default=FULL_S,
        help=f"of the whole run (default: {FULL_S:g}); with less, measurements are shorter",
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        default=DEFAULT_OUT,
        help="for rows.jsonl and facts.json (default: build/gpu)",
    )
    parser.add_argument(
        "--only", metavar="SCENE,…", default="", help="these scenes, by name or letter"
    )
    parser.add_argument(
        "--simulate",
        metavar="GPUS",
        nargs="?",
        const=SIMULATED,
        default="",
        help=f"on simulated GPUs (default: {SIMULATED})",
    )
    options = parser.parse_args()  # fmt: skip
    try:
        scenes = chosen(options.only)
    except ValueError as error:
        parser.error(f"--only: {error}")
    name = f"simulated {options.simulate}" if options.simulate else card()
    out: Path = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    for old in (out / ROWS, *(out / "facts").glob("*.json")):
        old.unlink(missing_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the scene's group is killed
    os.chdir(REPO)
    print(f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC\n{name}\nrows: {out / ROWS}")

    def command(scene: Scene, scale: float) -> list[str]:
        own = ["--out", str(out), "--scale", f"{scale:.4f}", "--card", name]
        if options.simulate:
            own += ["--simulate", options.simulate]
        return [sys.executable, "-m", "tests.gpu.scene", scene.name, *own]

    whole = play_all(scenes, options.budget, out, command, name)
    rows = [json.loads(line) for line in (out / ROWS).read_text().splitlines()]
    missed = [row for row in rows if row["held"] is False]
    print(f"\n{len(rows)} rows, {len(missed)} not as wanted:")
    for row in missed:
        print(f"  {row['scene']}: {row['what']}: wanted {row['wanted']}, got {row['got']}")
    return 0 if whole and not missed else 1


if __name__ == "__main__":
    sys.exit(main())

"""Scenes one after the other within a budget of seconds, most valuable first.

Each scene is a process that leads a session of its own. It starts only if its own budget fits into what is left, and at
the end of that budget its process group is killed, so that one that hangs costs no more than was planned for it. What
it wrote until then stays (rows.py); this process writes facts.json again after each scene.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.gpu.rows import FACTS, append, replace, row
from tests.kit.leftovers import clear

FULL_S = 540.0
"""The budget for which scenes have their whole time; with less, measurements are shorter by that ratio."""
LEAST_S = 20.0
"""Budget of a scene at least: a daemon and programs have to start, however short the measurement."""


@dataclass(frozen=True)
class Scene:
    letter: str
    name: str
    seconds: float
    """Budget of the scene when the whole run has FULL_S."""
    about: str = ""


Command = Callable[[Scene, float], Sequence[str]]
"""Arguments of a scene's process, from the scene and the scale of its times."""


def scale_of(budget_s: float) -> float:
    return min(1.0, budget_s / FULL_S)


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Everything that the scene started, unless it left the group on purpose."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _play(scene: Scene, arguments: Sequence[str], limit_s: float) -> str:
    """Why it failed, or nothing."""
    directory = Path(tempfile.mkdtemp(prefix="gpu-"))
    process = subprocess.Popen(
        arguments, start_new_session=True, env={**os.environ, "TMPDIR": str(directory)}
    )
    try:
        code = process.wait(timeout=limit_s)
        return "" if code == 0 else f"exit {code}"
    except subprocess.TimeoutExpired:
        return f"over its budget of {limit_s:.0f} s: killed"
    finally:
        kill_group(process)
        clear(directory)  # of a killed scene: mounts, cgroups
        shutil.rmtree(directory, ignore_errors=True)


def merge_facts(out: Path) -> None:
    parts = sorted((out / "facts").glob("*.json"))
    replace(out / FACTS, {part.stem: json.loads(part.read_text()) for part in parts})


def play_all(
    scenes: Sequence[Scene],
    budget_s: float,
    out: Path,
    command: Command,
    card: str = "",
    least_s: float = LEAST_S,
) -> bool:
    """Play what fits; True if every scene was played to its end."""
    began, whole = time.monotonic(), True
    (out / "facts").mkdir(parents=True, exist_ok=True)
    for scene in scenes:
        limit_s = max(least_s, scene.seconds * scale_of(budget_s))
        left_s = budget_s - (time.monotonic() - began)
        at = time.monotonic()
        print(f"\n[{scene.letter}] {scene.name}: {scene.about}", flush=True)
        if limit_s > left_s:
            failure = f"not started: needs {limit_s:.0f} s of the {left_s:.0f} that are left"
        else:
            failure = _play(scene, command(scene, scale_of(budget_s)), limit_s)
        seconds = time.monotonic() - at
        if failure:
            whole = False
            print(f"  FAIL {scene.name}: {failure}", flush=True)
        state = failure or "played"
        append(
            out, row(scene.name, card, seconds, "the scene itself", "played", state, not failure)
        )
        merge_facts(out)
        print(f"  ({scene.name}: {seconds:.1f} of {limit_s:.0f} s)", flush=True)
    return whole

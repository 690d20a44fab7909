"""tests/gpu/run on a machine without a card: it keeps to its budget, and what it measured is on the disk at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.budget import FULL_S, Scene, play_all
from tests.gpu.plan import SCENES
from tests.gpu.scenes.slices import changes_ns, overlap_ratio, running
from tests.kit.node import until
from tests.kit.places import REPO

SEEN = """
import sys
from pathlib import Path
from tests.gpu.rows import Rows
out = Path(sys.argv[1])
rows = out / "rows.jsonl"
before = rows.read_text().count(chr(10)) if rows.exists() else 0
report = Rows(facts={}, scene=sys.argv[2], out=out)
report.facts["rows_before"] = before
report.row("what it saw", "rows", str(before), True)
"""
HANGS = (
    SEEN
    + """
import subprocess, time
child = subprocess.Popen(["sleep", "600"])
(out / "child").write_text(str(child.pid))
time.sleep(600)
"""
)


def command_in(out: Path) -> Any:
    def command(scene: Scene, scale: float) -> Sequence[str]:
        script = HANGS if scene.name == "hangs" else SEEN
        return [sys.executable, "-c", script, str(out), scene.name]

    return command


def rows_of(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "rows.jsonl").read_text().splitlines()]


def gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"  # its parent was killed, too; pid 1 has not waited for it yet


def test_a_scene_that_hangs_is_killed_and_the_rest_go_on(tmp_path: Path) -> None:
    scenes = [Scene("1", "first", 60), Scene("2", "hangs", 4), Scene("3", "last", 60)]
    assert not play_all(scenes, 540, tmp_path, command_in(tmp_path), "a card", least_s=1)

    rows = rows_of(tmp_path)
    assert [(row["scene"], row["what"], row["held"]) for row in rows] == [
        ("first", "what it saw", True),
        ("first", "the scene itself", True),
        ("hangs", "what it saw", True),
        ("hangs", "the scene itself", False),
        ("last", "what it saw", True),
        ("last", "the scene itself", True),
    ]
    assert rows[3]["got"] == "over its budget of 4 s: killed"
    assert rows[5]["card"] == "a card"
    # Each scene found the rows of those before it on the disk.
    facts = json.loads((tmp_path / "facts.json").read_text())
    assert facts == {
        "first": {"rows_before": 0},
        "hangs": {"rows_before": 2},
        "last": {"rows_before": 4},
    }
    child = int((tmp_path / "child").read_text())
    until("what the scene started is gone", lambda: gone(child), 10)


def test_a_scene_that_does_not_fit_is_not_started(tmp_path: Path) -> None:
    scenes = [Scene("1", "first", 500), Scene("2", "large", 5400), Scene("3", "last", 5)]
    assert not play_all(scenes, 540, tmp_path, command_in(tmp_path))

    rows = {row["scene"]: row for row in rows_of(tmp_path)}
    assert rows["large"]["held"] is False
    assert rows["large"]["got"].startswith("not started: needs 5400 s")
    assert rows["last"]["held"] is True


def test_a_change_of_contexts_is_what_a_gap_has_beside_the_others_time() -> None:
    """Slices of 2 ms in turn, 0.2 ms for each change."""
    mine = {"begin_ns": 0, "end_ns": 6_400_000, "jumps": 1, "jump": [[2_000_000, 2_400_000]]}
    other = {
        "begin_ns": 2_200_000,
        "end_ns": 8_800_000,
        "jumps": 1,
        "jump": [[2_000_000, 2_400_000]],
    }
    assert running(mine) == [(0, 2_000_000), (4_400_000, 6_400_000)]
    assert changes_ns(mine, [other]) == [200_000]
    assert overlap_ratio(mine, other) == 0


def test_scenes_come_in_the_order_of_their_value_and_the_best_fit_into_half_of_the_budget() -> None:
    assert "".join(scene.letter for scene in SCENES) == "0ABCDEFGHIJKLMN"
    assert sum(scene.seconds for scene in SCENES[:6]) <= FULL_S / 2, "up to E"
    assert sum(scene.seconds for scene in SCENES) <= FULL_S * 1.2, "most end long before theirs"


def test_it_runs_over_the_simulator(tmp_path: Path) -> None:
    arguments = ["--simulate", "--budget", "100", "--only", "B,unusual", "--out", str(tmp_path)]
    done = subprocess.run(
        [REPO / "tests" / "gpu" / "run", *arguments], capture_output=True, text=True, timeout=200
    )
    rows = rows_of(tmp_path)
    played = {row["scene"]: row["got"] for row in rows if row["what"] == "the scene itself"}
    assert played == {"costs": "played", "unusual": "played"}, done.stdout + done.stderr
    assert all(row["card"] == "simulated h200-141gb" for row in rows)
    costs = json.loads((tmp_path / "facts.json").read_text())["costs"]
    assert costs["one process"]["record_ns"] > 0
    assert costs["eight processes"]["nvml_processes_ns"] > 0


@pytest.mark.full
def test_the_archive_runs_in_an_empty_directory(tmp_path: Path) -> None:
    archive = tmp_path / "archive.tar.gz"
    script = REPO / "packaging" / "release" / "gpu_archive.py"
    subprocess.run([sys.executable, script, archive], check=True)
    assert archive.stat().st_size <= 40 << 20
    with tarfile.open(archive) as file:
        file.extractall(tmp_path, filter="data")

    environment = {
        "PATH": os.environ["PATH"],
        "SLUICE_GPU_PYTHON": sys.base_prefix + "/bin/python3",
    }
    out = tmp_path / "out"
    arguments = ["--simulate", "--only", "costs,unusual", "--out", str(out)]
    subprocess.run(
        [tmp_path / "sluice-gpu" / "tests" / "gpu" / "run", *arguments],
        env=environment,
        cwd=tmp_path,
        timeout=200,
    )
    played = {row["scene"]: row["got"] for row in rows_of(out) if row["what"] == "the scene itself"}
    assert played == {"costs": "played", "unusual": "played"}

"""The whole answer of `lint` and `simulate` over the examples, word for word.

test_lint.py and test_simulate.py say what each rule and figure means; this says that nothing of
the whole changes unnoticed (SLUICE_UPDATE_GOLDEN=1 writes the files anew, see tests/golden).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from tests.golden import check_entry
from tests.queue.manifests.collected import FOLDER, SETS

GOLDEN: Final = Path(__file__).parent / "golden.json"
ROOT: Final = Path(__file__).resolve().parents[3]
SLUICE: Final = Path(sys.executable).parent / "sluice"
HOW_MANY_CYCLES: Final = "cycles"
"""How the engine gets there is its own affair; what comes of it is pinned."""

Answer = tuple[int, Any]


def answer(
    verb: str, *arguments: str, command: tuple[str, ...] = (), hash_seed: str = "0"
) -> Answer:
    """Exit status and JSON of a process of its own, run among the manifests so that the paths in
    the answer are relative."""
    ours = command or (sys.executable, "-m", "queuecontroller")
    done = subprocess.run(
        [*ours, verb, "-o", "json", *arguments],
        cwd=FOLDER,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)


def pinned(verb: str, folder: str) -> dict[str, Any]:
    status, said = answer(verb, "-f", folder)
    if verb == "simulate":
        del said[HOW_MANY_CYCLES]
    return {"exit_status": status, "answer": said}


@pytest.mark.parametrize("verb", ["lint", "simulate"])
@pytest.mark.parametrize("folder", SETS, ids=lambda path: path.name)
def test_the_answer_is_the_recorded_one(verb: str, folder: Path) -> None:
    check_entry(GOLDEN, f"{verb} {folder.name}", pinned(verb, folder.name))


def test_nothing_is_recorded_of_folders_that_are_gone() -> None:
    wanted = {f"{verb} {one.name}" for verb in ("lint", "simulate") for one in SETS}
    assert set(json.loads(GOLDEN.read_text())) == wanted


@pytest.mark.parametrize(
    ("verb", "arguments"),
    [
        (
            "lint",
            ("-f", "research-and-production", "-f", "building-blocks", "-f", "spot-and-on-demand"),
        ),
        ("simulate", ("-f", "first-queue", "--jobs", "40", "--seed", "3")),
        ("simulate", ("-f", "deployments-with-gpu-shares", "--jobs", "40", "--seed", "3")),
    ],
    ids=lambda value: value if isinstance(value, str) else value[1],
)
def test_the_order_of_hashes_decides_nothing(verb: str, arguments: tuple[str, ...]) -> None:
    first = answer(verb, *arguments, hash_seed="1")
    assert first[1], "an answer to compare"
    assert answer(verb, *arguments, hash_seed="2") == first


@pytest.mark.skipif(not SLUICE.exists(), reason="the node's command is not installed beside Python")
@pytest.mark.parametrize(
    ("verb", "folder"),
    [("simulate", "deployments-with-gpu-shares"), ("lint", "research-and-production")],
)
def test_sluice_queue_says_the_same(verb: str, folder: str) -> None:
    through_the_node = answer(verb, "-f", folder, command=(str(SLUICE), "queue"))
    assert through_the_node == answer(verb, "-f", folder)

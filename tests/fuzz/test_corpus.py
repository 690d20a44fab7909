"""The checked-in corpora, replayed under ASan and UBSan."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.fuzz import seeds
from tests.fuzz.__main__ import TARGETS
from tests.kit.places import MESON, REPO

CORPUS = REPO / "tests" / "fuzz" / "corpus"


def replayer(target: str) -> Path:
    done = subprocess.run(
        ["ninja", "-C", MESON, "--quiet", f"tests/fuzz/replay_{target}"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return MESON / "tests" / "fuzz" / f"replay_{target}"


def test_the_targets_are_the_files_here() -> None:
    here = REPO / "tests" / "fuzz"
    files = {path.stem.removeprefix("fuzz_") for path in here.glob("fuzz_*.c")}
    assert files == set(TARGETS) == set(seeds.MADE) == {path.name for path in CORPUS.iterdir()}


@pytest.mark.parametrize("target", sorted(seeds.MADE))
def test_no_input_of_the_corpus_is_a_finding(target: str, tmp_path: Path) -> None:
    inputs = sorted((CORPUS / target).iterdir())
    assert inputs, "an empty corpus proves nothing"
    for name, data in seeds.MADE[target]().items():
        (tmp_path / name).write_bytes(data)
    inputs += sorted(tmp_path.iterdir())
    done = subprocess.run([replayer(target), *inputs], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout == f"{len(inputs)} inputs\n"

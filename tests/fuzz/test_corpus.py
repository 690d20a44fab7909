"""The checked-in corpora, replayed under ASan and UBSan; and the archives that they are kept in."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.fuzz import corpus, seeds
from tests.fuzz.__main__ import TARGETS
from tests.kit.places import MESON, REPO


def replayer(target: str) -> Path:
    done = subprocess.run(
        ["ninja", "-C", MESON, "--quiet", f"tests/fuzz/native/replay_{target}"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return MESON / "tests" / "fuzz" / "native" / f"replay_{target}"


def test_the_targets_are_the_files_here() -> None:
    here = REPO / "tests" / "fuzz" / "native"
    files = {path.stem.removeprefix("fuzz_") for path in here.glob("fuzz_*.c")}
    assert files == set(TARGETS) == set(seeds.MADE) == corpus.targets()


@pytest.mark.parametrize("target", sorted(seeds.MADE))
def test_no_input_of_the_corpus_is_a_finding(target: str, tmp_path: Path) -> None:
    inputs = corpus.unpack(target, tmp_path / "packed")
    assert inputs, "an empty corpus proves nothing"
    made = tmp_path / "made"
    made.mkdir()
    for name, data in seeds.MADE[target]().items():
        (made / name).write_bytes(data)
    inputs += sorted(made.iterdir())
    done = subprocess.run([replayer(target), *inputs], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout == f"{len(inputs)} inputs\n"


@pytest.mark.parametrize("target", sorted(seeds.MADE))
def test_an_archive_is_in_its_canonical_form(target: str) -> None:
    inputs = corpus.read(target)
    assert corpus.path_of(target).read_bytes() == corpus.canonical(inputs)


def test_an_input_is_added_once_and_the_order_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "CORPUS", tmp_path)
    assert corpus.read("one") == []
    corpus.write("one", [b"b", b"a", b"b"])
    corpus.write("other", [b"a", b"b"])
    assert corpus.path_of("one").read_bytes() == corpus.path_of("other").read_bytes()
    assert sorted(corpus.read("one")) == [b"a", b"b"]
    unpacked = corpus.unpack("one", tmp_path / "unpacked")
    assert [path.read_bytes() for path in unpacked] == corpus.read("one")

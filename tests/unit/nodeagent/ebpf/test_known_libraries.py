"""The driver's libraries are found again when they change, and their directory is read only then."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from nodeagent import native
from nodeagent.adapters.ebpf.known import SETTLED_NS, known_libraries

LONG_AGO_NS = 10 * SETTLED_NS


@pytest.fixture
def place(tmp_path: Path) -> Path:
    made = tmp_path / "lib"
    made.mkdir()
    (made / "libcuda.so.1").touch()
    return made


@pytest.fixture
def known(place: Path, tmp_path: Path) -> Callable[[], frozenset[str]]:
    environment = {"LD_LIBRARY_PATH": str(place)}
    return known_libraries(native.locate(), environment, tmp_path / "kept")


def test_a_driver_that_comes_or_goes_is_seen_at_the_next_look(
    place: Path, known: Callable[[], frozenset[str]]
) -> None:
    assert str(place / "libcuda.so.1") in known()
    (place / "libcuda.so.581.1").touch()  # within the clock's tick of the look before
    assert str(place / "libcuda.so.581.1") in known()
    (place / "libcuda.so.1").unlink()
    assert str(place / "libcuda.so.1") not in known()


def test_a_directory_at_rest_is_not_read_again(
    place: Path, known: Callable[[], frozenset[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    rest = place.stat().st_mtime_ns - LONG_AGO_NS
    os.utime(place, ns=(rest, rest))
    before = known()
    read: list[Path] = []
    glob = Path.glob

    def counted(self: Path, pattern: str) -> object:
        read.append(self)
        return glob(self, pattern)

    monkeypatch.setattr(Path, "glob", counted)
    assert known() == before
    assert place not in read
    (place / "libcuda.so.2").touch()
    assert known() == before | {str(place / "libcuda.so.2")}
    assert place in read

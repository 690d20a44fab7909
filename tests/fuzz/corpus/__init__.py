"""The corpora of the C targets, one archive each: tests/fuzz/corpus/TARGET.zip.

libFuzzer and the replay read files, so `unpack` writes an archive's inputs below build/. An archive has one canonical
form (sorted, stored without compression, one date), so that the same inputs give the same bytes on every machine.
An input's name is the SHA-1 of its bytes, as libFuzzer names it; an input that is added twice is kept once.

    python -m tests.fuzz.corpus add region build/fuzz/finding-region-…
    python -m tests.fuzz.corpus list region
"""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from collections.abc import Iterable
from pathlib import Path

CORPUS = Path(__file__).parent
DATE = (1980, 1, 1, 0, 0, 0)
"""The first one that the format has."""


def path_of(target: str) -> Path:
    return CORPUS / f"{target}.zip"


def targets() -> set[str]:
    return {path.stem for path in CORPUS.glob("*.zip")}


def read(target: str) -> list[bytes]:
    """The archive's inputs in its order; an archive that is not there yet has none."""
    path = path_of(target)
    if not path.exists():
        return []
    with zipfile.ZipFile(path) as archive:
        return [archive.read(name) for name in archive.namelist()]


def canonical(inputs: Iterable[bytes]) -> bytes:
    """The bytes of the archive that holds these inputs."""
    named = {hashlib.sha1(data, usedforsecurity=False).hexdigest(): data for data in inputs}
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        for name, data in sorted(named.items()):
            entry = zipfile.ZipInfo(name, DATE)
            entry.create_system = 3  # Unix: Python writes the system it runs on
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, data)
    return packed.getvalue()


def write(target: str, inputs: Iterable[bytes]) -> None:
    """Replaces the archive at once, so that an interrupted run leaves the earlier one."""
    path = path_of(target)
    path.parent.mkdir(exist_ok=True)
    new = path.with_suffix(".new")
    new.write_bytes(canonical(inputs))
    os.replace(new, path)


def unpack(target: str, directory: Path) -> list[Path]:
    """Writes each input into a directory of its own name; returns the files, sorted."""
    directory.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path_of(target)) as archive:
        return sorted(Path(archive.extract(name, directory)) for name in archive.namelist())

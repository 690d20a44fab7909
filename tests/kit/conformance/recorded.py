"""Opens files of recorded cases, as they are or compressed."""

from __future__ import annotations

import gzip
import lzma
from pathlib import Path
from typing import TextIO, cast


def open_text(path: Path) -> TextIO:
    """Open a UTF-8 file for reading; the suffixes `.gz` and `.xz` say how it is compressed.

    Raises OSError. What is read from it may raise OSError, EOFError or lzma.LZMAError.
    """
    if path.suffix == ".gz":
        return cast(TextIO, gzip.open(path, "rt", encoding="utf-8"))
    if path.suffix == ".xz":
        return cast(TextIO, lzma.open(path, "rt", encoding="utf-8"))
    return path.open(encoding="utf-8")

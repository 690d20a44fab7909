"""Reads the dynamic symbols of 64-bit little-endian ELF files, and takes names out of a copy.

So small that a parser from a package would bring more to install than it saves, and the taking
out (a symbol without a value, which loaders skip) is what no package does. Layout: System V ABI,
chapters 4 and 5.
"""

from __future__ import annotations

import mmap
import platform
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

_MACHINES: Final = {"x86_64": 62, "aarch64": 183, "ppc64le": 21}
_IDENT: Final = b"\x7fELF\x02\x01"  # 64 bits, little-endian
_HEADER_BYTES: Final = 64
_SHT_DYNSYM: Final = 11
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_SYMBOL: Final = struct.Struct("<IBBHQQ")


class NotElf(ValueError):
    """Not a library of this kind, or damaged."""


def loadable(path: Path) -> bool:
    """Whether a program of this machine's kind could load the file: not the 32-bit driver, which
    systems with games have beside the other one. True for what cannot be read: then loading it
    says why."""
    try:
        with path.open("rb") as file:
            header = file.read(20)
    except OSError:
        return True
    wanted = _MACHINES.get(platform.machine())
    (machine,) = struct.unpack_from("<H", header.ljust(20, b"\0"), 18)
    return header.startswith(_IDENT) and (wanted is None or machine == wanted)


def exports(path: Path) -> frozenset[str]:
    """Names the library defines for others. Raises NotElf, OSError."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return frozenset(name for _, name, value in _symbols(data) if value)


def without(library: bytes, gone: Callable[[str], bool]) -> bytes:
    """A copy in which the exported symbols that `gone` names cannot be found. Raises NotElf."""
    copy = bytearray(library)
    for offset, name, value in _symbols(library):
        if value and gone(name):
            index, info, other, _, _, size = _SYMBOL.unpack_from(copy, offset)
            weak = 2 << 4 | info & 15
            _SYMBOL.pack_into(copy, offset, index, weak, other, 0, 0, size)
    return bytes(copy)


def _symbols(data: bytes | mmap.mmap) -> Iterator[tuple[int, str, int]]:
    """(where in the file, name, value; 0: not defined here)."""
    if len(data) < _HEADER_BYTES or data[: len(_IDENT)] != _IDENT:
        raise NotElf("not a 64-bit little-endian ELF file")
    (table,) = struct.unpack_from("<Q", data, 0x28)
    entry, count = struct.unpack_from("<HH", data, 0x3A)
    if entry != _SECTION.size:
        raise NotElf("sections of an unknown size")
    try:
        sections = [_SECTION.unpack_from(data, table + i * entry) for i in range(count)]
        for section in sections:
            if section[1] != _SHT_DYNSYM:
                continue
            names = sections[section[6]][4]
            for offset in range(section[4], section[4] + section[5], _SYMBOL.size):
                index, _, _, where, value, _ = _SYMBOL.unpack_from(data, offset)
                start = names + index
                end = data.find(b"\0", start)
                name = bytes(data[start:end]).decode("ascii", "replace")
                yield offset, name, value if where else 0
    except (struct.error, IndexError) as error:
        raise NotElf(f"a damaged ELF file: {error}") from None

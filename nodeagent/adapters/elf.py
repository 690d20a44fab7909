"""Reads the dynamic symbols and probes of 64-bit little-endian ELF files, and takes names out of
a copy.

So small that a parser from a package would bring more to install than it saves, and the taking
out (a symbol without a value, which loaders skip) is what no package does. Layout: System V ABI,
chapters 4 and 5.
"""

from __future__ import annotations

import mmap
import platform
import struct
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_MACHINES: Final = {"x86_64": 62, "aarch64": 183, "ppc64le": 21}
_IDENT: Final = b"\x7fELF\x02\x01"  # 64 bits, little-endian
_HEADER_BYTES: Final = 64
_SHT_NOTE: Final = 7
_SHT_DYNSYM: Final = 11
_PT_LOAD: Final = 1
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_SYMBOL: Final = struct.Struct("<IBBHQQ")
_SEGMENT: Final = struct.Struct("<IIQQQQQQ")
_NOTE: Final = struct.Struct("<III")
_PROBE: Final = struct.Struct("<QQQ")
_STAPSDT: Final = 3


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


@dataclass(frozen=True, slots=True)
class Probe:
    """One place of a USDT probe."""

    provider: str
    name: str
    offset: int
    """Of its instruction, in the file."""
    arguments: str


def probes(path: Path) -> list[Probe]:
    """The USDT probes of a library, from its notes of SystemTap's kind. Raises NotElf, OSError."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        sections = _sections(data)
        try:
            return [
                probe
                for section in sections
                if section[1] == _SHT_NOTE
                for probe in _probes_in(data, section[4], section[4] + section[5])
            ]
        except (struct.error, IndexError, ValueError) as error:
            raise NotElf(f"damaged notes: {error}") from None


def functions(path: Path, wanted: Collection[str]) -> dict[str, int]:
    """Where in the file the code of these exported functions starts; those it lacks are absent.
    Raises NotElf, OSError."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return {
            name: _file_offset(data, value)
            for _, name, value in _symbols(data)
            if value and name in wanted
        }


def names_symbol(path: Path, name: str) -> bool:
    """Whether the name is in the library's dynamic string table at all: a quick look, at the speed
    of memory, before symbols are read one by one. Raises NotElf, OSError."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        sections = _sections(data)
        needle = b"\0" + name.encode() + b"\0"
        try:
            tables = [sections[section[6]] for section in sections if section[1] == _SHT_DYNSYM]
        except IndexError:
            raise NotElf("a damaged ELF file") from None
        return any(data.find(needle, s[4], s[4] + s[5]) >= 0 for s in tables)


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
    sections = _sections(data)
    try:
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


def _sections(data: bytes | mmap.mmap) -> list[tuple[int, ...]]:
    if len(data) < _HEADER_BYTES or data[: len(_IDENT)] != _IDENT:
        raise NotElf("not a 64-bit little-endian ELF file")
    (table,) = struct.unpack_from("<Q", data, 0x28)
    entry, count = struct.unpack_from("<HH", data, 0x3A)
    if entry != _SECTION.size:
        raise NotElf("sections of an unknown size")
    try:
        return [_SECTION.unpack_from(data, table + i * entry) for i in range(count)]
    except struct.error as error:
        raise NotElf(f"a damaged ELF file: {error}") from None


def _file_offset(data: bytes | mmap.mmap, address: int) -> int:
    """Of an address as the linker gave it."""
    (table,) = struct.unpack_from("<Q", data, 0x20)
    entry, count = struct.unpack_from("<HH", data, 0x36)
    try:
        for i in range(count):
            kind, _, offset, start, _, bytes_, *_ = _SEGMENT.unpack_from(data, table + i * entry)
            if kind == _PT_LOAD and start <= address < start + bytes_:
                return int(address - start + offset)
    except struct.error as error:
        raise NotElf(f"a damaged ELF file: {error}") from None
    raise NotElf(f"address {address:#x} is in no segment")


def _probes_in(data: bytes | mmap.mmap, at: int, end: int) -> Iterator[Probe]:
    while at + _NOTE.size <= end:
        name_bytes, bytes_, kind = _NOTE.unpack_from(data, at)
        name_at = at + _NOTE.size
        what = name_at + (name_bytes + 3 & ~3)
        at = what + (bytes_ + 3 & ~3)
        if kind != _STAPSDT or bytes(data[name_at : name_at + 8]) != b"stapsdt\0":
            continue
        address, _base, _semaphore = _PROBE.unpack_from(data, what)
        texts = bytes(data[what + _PROBE.size : what + bytes_]).split(b"\0")
        provider, name, arguments = (text.decode("ascii", "replace") for text in texts[:3])
        yield Probe(provider, name, _file_offset(data, address), arguments)

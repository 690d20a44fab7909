"""Reads the dynamic symbols and probes of 64-bit little-endian ELF files, and removes names from a
copy.

A parser from a package would be larger than this, and none can remove a name (make it a symbol
without a value, which loaders skip). Layout: System V ABI, chapters 4 and 5.

The files belong to tenants, who may truncate them during a read, so they are not memory-mapped: an
access would raise SIGBUS. Only the tables are read, and none larger than those of real libraries.
"""

from __future__ import annotations

import contextlib
import os
import platform
import struct
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_MACHINES: Final = {"x86_64": 62, "aarch64": 183, "ppc64le": 21}
_IDENT: Final = b"\x7fELF\x02\x01"  # 64 bits, little-endian.
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
LARGEST_SYMBOLS: Final = 16 << 20
LARGEST_TABLE: Final = 64 << 20
"""Maximum bytes of names or notes; PyTorch's largest library has 20 MiB of names."""
LONGEST_NAME: Final = 4096
"""Maximum length of a name; no name that is searched for is longer."""

Read = Callable[[int, int], bytes]
"""Reads at an offset a number of bytes; returns fewer at the end of the file."""


class NotElf(ValueError):
    """The file is not a library of this kind, or is damaged."""


def loadable(path: Path) -> bool:
    """True if a program of this machine's architecture could load the file. Desktop systems
    often have a 32-bit driver as well. Also True if the file cannot be read, because the loader
    then reports the reason."""
    try:
        with path.open("rb") as file:
            header = file.read(20)
    except OSError:
        return True
    wanted = _MACHINES.get(platform.machine())
    (machine,) = struct.unpack_from("<H", header.ljust(20, b"\0"), 18)
    return header.startswith(_IDENT) and (wanted is None or machine == wanted)


def exports(path: Path) -> frozenset[str]:
    """Names that the library exports. Raises NotElf, OSError."""
    with _opened(path) as read:
        return frozenset(name for _, name, value in _symbols(read) if value)


@dataclass(frozen=True, slots=True)
class Probe:
    """One location of a USDT probe."""

    provider: str
    name: str
    offset: int
    """Offset of its instruction in the file."""
    arguments: str


def probes(path: Path) -> list[Probe]:
    """The USDT probes of a library, from its notes in SystemTap's format. Raises NotElf,
    OSError."""
    with _opened(path) as read:
        return [
            probe
            for section in _sections(read)
            if section[1] == _SHT_NOTE
            for probe in _probes_in(read, _table(read, section, LARGEST_TABLE))
        ]


def functions(path: Path, wanted: Collection[str]) -> dict[str, int]:
    """Offsets in the file of these exported functions' code; missing functions are left out. Raises
    NotElf, OSError."""
    with _opened(path) as read:
        return {
            name: _file_offset(read, value)
            for _, name, value in _symbols(read)
            if value and name in wanted
        }


def names_symbol(path: Path, name: str) -> bool:
    """True if the name is in the library's dynamic string table, a fast check before symbols are
    read one by one. Raises NotElf, OSError."""
    needle = b"\0" + name.encode() + b"\0"
    with _opened(path) as read:
        sections = _sections(read)
        return any(
            needle in _table(read, _linked(sections, section), LARGEST_TABLE)
            for section in sections
            if section[1] == _SHT_DYNSYM
        )


def without(library: bytes, gone: Callable[[str], bool]) -> bytes:
    """A copy without the exported symbols for which `gone` is True. Raises NotElf."""
    copy = bytearray(library)
    for offset, name, value in _symbols(lambda at, size: library[at : at + size]):
        if value and gone(name):
            index, info, other, _, _, size = _SYMBOL.unpack_from(copy, offset)
            weak = 2 << 4 | info & 15
            _SYMBOL.pack_into(copy, offset, index, weak, other, 0, 0, size)
    return bytes(copy)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Read]:
    """A reader of the file. Raises OSError; reading may raise NotElf."""
    with path.open("rb") as file:

        def read(at: int, size: int) -> bytes:
            try:
                return os.pread(file.fileno(), size, at)
            except OverflowError:  # The offset is larger than any file.
                raise NotElf("a damaged ELF file: tables beyond its end") from None

        yield read


def _symbols(read: Read) -> Iterator[tuple[int, str, int]]:
    """Offset in the file, name, and value of each symbol; a value of 0 means that it is not defined
    here."""
    sections = _sections(read)
    for section in sections:
        if section[1] != _SHT_DYNSYM:
            continue
        symbols = _table(read, section, LARGEST_SYMBOLS)
        names = _table(read, _linked(sections, section), LARGEST_TABLE)
        whole = len(symbols) - len(symbols) % _SYMBOL.size
        for number, entry in enumerate(_SYMBOL.iter_unpack(symbols[:whole])):
            index, _, _, where, value, _ = entry
            end = names.find(b"\0", index, index + LONGEST_NAME)
            name = names[index : end if end >= 0 else index + LONGEST_NAME]
            offset = section[4] + number * _SYMBOL.size
            yield offset, name.decode("ascii", "replace"), value if where else 0


def _linked(sections: list[tuple[int, ...]], section: tuple[int, ...]) -> tuple[int, ...]:
    try:
        return sections[section[6]]
    except IndexError:
        raise NotElf("a damaged ELF file: a section without its names") from None


def _table(read: Read, section: tuple[int, ...], most: int) -> bytes:
    """All bytes of a section. Raises NotElf."""
    at, size = section[4], section[5]
    if size > most:
        raise NotElf(f"a section of {size} bytes: more than {most}")
    data = read(at, size)
    if len(data) < size:
        raise NotElf("a damaged ELF file: a section beyond its end")
    return data


def _sections(read: Read) -> list[tuple[int, ...]]:
    header = _header(read)
    (table,) = struct.unpack_from("<Q", header, 0x28)
    entry, count = struct.unpack_from("<HH", header, 0x3A)
    return _entries(read, table, entry, count, _SECTION)


def _header(read: Read) -> bytes:
    header = read(0, _HEADER_BYTES)
    if len(header) < _HEADER_BYTES or not header.startswith(_IDENT):
        raise NotElf("not a 64-bit little-endian ELF file")
    return header


def _entries(
    read: Read, at: int, entry: int, count: int, form: struct.Struct
) -> list[tuple[int, ...]]:
    if entry != form.size:
        raise NotElf("tables of an unknown size")
    data = read(at, count * entry)
    if len(data) < count * entry:
        raise NotElf("a damaged ELF file: tables beyond its end")
    return list(form.iter_unpack(data))


def _file_offset(read: Read, address: int) -> int:
    """File offset of an address that the linker assigned."""
    header = _header(read)
    (table,) = struct.unpack_from("<Q", header, 0x20)
    entry, count = struct.unpack_from("<HH", header, 0x36)
    for kind, _, offset, start, _, bytes_, *_ in _entries(read, table, entry, count, _SEGMENT):
        if kind == _PT_LOAD and start <= address < start + bytes_:
            return int(address - start + offset)
    raise NotElf(f"address {address:#x} is in no segment")


def _probes_in(read: Read, notes: bytes) -> Iterator[Probe]:
    """The probes in a section's bytes."""
    at = 0
    while at + _NOTE.size <= len(notes):
        name_bytes, bytes_, kind = _NOTE.unpack_from(notes, at)
        name_at = at + _NOTE.size
        what = name_at + (name_bytes + 3 & ~3)
        at = what + (bytes_ + 3 & ~3)
        if kind != _STAPSDT or notes[name_at : name_at + 8] != b"stapsdt\0":
            continue
        inside = notes[what : what + bytes_]
        texts = inside[_PROBE.size :].split(b"\0")
        if len(inside) < _PROBE.size or len(texts) < 3:
            raise NotElf("damaged notes")
        address, _base, _semaphore = _PROBE.unpack_from(inside)
        provider, name, arguments = (text.decode("ascii", "replace") for text in texts[:3])
        yield Probe(provider, name, _file_offset(read, address), arguments)

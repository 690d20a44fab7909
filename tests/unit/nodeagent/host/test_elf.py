"""Libraries that a tenant made, or cut short while they are read."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from nodeagent.adapters.host import elf
from tests.kit.places import SIM

LIBRARY = SIM / "libnvidia-ml.so.1"


def test_a_good_one_is_read() -> None:
    assert "nvmlInit_v2" in elf.exports(LIBRARY)
    assert elf.names_symbol(LIBRARY, "nvmlInit_v2")
    assert not elf.names_symbol(LIBRARY, "nvmlInit_v")


def test_cut_short_anywhere_it_is_none(tmp_path: Path) -> None:
    """The empty one ended the reader once: nothing can be mapped of it."""
    data = LIBRARY.read_bytes()
    path = tmp_path / "lib.so"
    for size in (0, 1, 63, 64, len(data) // 2, len(data) - 1):  # the table of sections is the last
        path.write_bytes(data[:size])
        for look in (elf.exports, elf.probes, lambda one: elf.names_symbol(one, "cuInit")):
            with pytest.raises(elf.NotElf):
                look(path)


@pytest.mark.parametrize("size", [(16 << 20) + 24, 1 << 40, 2**64 - 1])
def test_a_table_larger_than_any_is_not_read(tmp_path: Path, size: int) -> None:
    data = bytearray(LIBRARY.read_bytes())
    (table,) = struct.unpack_from("<Q", data, 0x28)
    (count,) = struct.unpack_from("<H", data, 0x3C)
    (at,) = [
        table + 64 * i
        for i in range(count)
        if struct.unpack_from("<I", data, table + 64 * i + 4) == (11,)
    ]
    struct.pack_into("<Q", data, at + 32, size)
    path = tmp_path / "lib.so"
    path.write_bytes(data)
    with pytest.raises(elf.NotElf, match="more than"):
        elf.exports(path)


def test_a_name_without_an_end_takes_no_time(tmp_path: Path) -> None:
    """Each of many symbols with a name of all the rest of the table."""
    symbols = struct.pack("<IBBHQQ", 1, 0x12, 0, 1, 1, 0) * 300_000
    names = b"\0" + b"x" * (1 << 20)
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01", 3, 62, 1, 0, 0, 64, 0, 64, 56, 0, 64, 2, 0
    )
    at = 64 + 2 * 64
    sections = [(0, 11, 0, 0, at, len(symbols), 1, 0, 8, 24)]
    sections.append((0, 3, 0, 0, at + len(symbols), len(names), 0, 0, 1, 0))
    path = tmp_path / "lib.so"
    path.write_bytes(
        header + b"".join(struct.pack("<IIQQQQIIQQ", *one) for one in sections) + symbols + names
    )
    assert {len(name) for name in elf.exports(path)} == {elf.LONGEST_NAME}

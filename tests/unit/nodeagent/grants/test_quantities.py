"""The quantities that people type, and how they are shown again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.core.grants.quantities import (
    QuantityError,
    format_bytes,
    format_share,
    memory_on,
    parse_cores,
    parse_memory,
)
from nodeagent.ports.clients import MemoryAsk
from nodeagent.units import Bytes, Ppm

MIB, GIB = 2**20, 2**30


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("8Gi", 8 * GIB),
        ("8000", 8000 * MIB),
        ("512M", 512 * 10**6),
        ("1.5Gi", 3 * GIB // 2),
        (" 2Ti ", 2048 * GIB),
        ("300MiB", 300 * MIB),
        ("1048576B", MIB),
    ],
)
def test_amounts(text: str, amount: int) -> None:
    assert parse_memory(text) == MemoryAsk(amount_bytes=Bytes(amount))


def test_parts_mean_the_gpu_that_is_chosen() -> None:
    ask = parse_memory("25%")
    assert ask == MemoryAsk(part_ppm=Ppm(250_000))
    assert memory_on(ask, Bytes(80 * GIB)) == 20 * GIB
    assert memory_on(parse_memory("100%"), Bytes(80 * GIB + 12345)) == 80 * GIB + 12345
    assert memory_on(parse_memory("33.3%"), Bytes(10 * GIB)) % MIB == 0


@pytest.mark.parametrize(
    "text", ["", "lots", "-1Gi", "0", "1e9", "8 Gi", "0%", "101%", "9999Ti", "1Ei", "٣Gi"]
)
def test_what_is_no_amount_is_refused_with_what_would_be(text: str) -> None:
    with pytest.raises(QuantityError) as caught:
        parse_memory(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "ppm"),
    [("50", 500_000), ("12.5", 125_000), ("100", 10**6), ("1", 10_000), ("30%", 300_000)],
)
def test_cores(text: str, ppm: int) -> None:
    assert parse_cores(text) == ppm


@pytest.mark.parametrize("text", ["0", "101", "0.5", "half", "", "-3", "1e1"])
def test_what_is_no_share(text: str) -> None:
    with pytest.raises(QuantityError, match="1 to 100"):
        parse_cores(text)


@given(st.integers(1, 2**53 // MIB))
def test_whole_mebibytes_are_read_back_exactly(mebibytes: int) -> None:
    assert parse_memory(str(mebibytes)).amount_bytes == mebibytes * MIB
    assert parse_memory(f"{mebibytes}Mi").amount_bytes == mebibytes * MIB


def test_shown_short() -> None:
    assert [format_bytes(n) for n in (0, 512, 8 * GIB, 3 * GIB // 2, 300 * MIB, 1023 * GIB)] == [
        "0B", "512B", "8Gi", "1.5Gi", "300Mi", "1023Gi",
    ]  # fmt: skip
    assert format_share(125_000) == "12.5%"

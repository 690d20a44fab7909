"""Kubernetes quantities: every notation, rounding up, saturation."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicecommon.kubernetes.quantity import (
    MAX_AMOUNT,
    QuantityError,
    exact_value,
    format_amount,
    parse_amount,
)


@pytest.mark.parametrize(
    ("resource", "text", "amount"),
    [
        ("cpu", "1", 1000),
        ("cpu", "250m", 250),
        ("cpu", "1.5", 1500),
        ("cpu", "0.0001", 1),
        ("cpu", "1k", 1_000_000),
        ("cpu", 2, 2000),
        ("cpu", 0.5, 500),
        ("memory", "1Ki", 1024),
        ("memory", "1.5Gi", 3 * 2**29),
        ("memory", "1e3", 1000),
        ("memory", "5E", 5 * 10**18),
        ("memory", "1E2", 100),
        ("memory", "100m", 1),
        ("memory", "1Ei", 2**60),
        ("nvidia.com/gpu", "8", 8),
        ("nvidia.com/gpu", "-3", -3),
        ("cpu", "9223372036854776", MAX_AMOUNT),
        ("memory", "100E", MAX_AMOUNT),
    ],
)
def test_a_quantity_counts_what_kueue_counts(resource: str, text: object, amount: int) -> None:
    assert parse_amount(resource, text) == amount


@pytest.mark.parametrize(
    "text", ["", ".", "1 Gi", "1gi", "Gi", "0x10", "1e", "--1", True, None, []]
)
def test_what_is_no_quantity_is_refused(text: object) -> None:
    with pytest.raises(QuantityError):
        parse_amount("memory", text)


@given(st.sampled_from(["cpu", "memory", "nvidia.com/gpu"]), st.integers(0, 10**15))
def test_formatting_loses_nothing(resource: str, amount: int) -> None:
    assert parse_amount(resource, format_amount(resource, amount)) == amount


@given(st.integers(-(10**12), 10**12), st.integers(0, 9))
def test_a_fraction_rounds_up_to_the_next_unit(whole: int, digits: int) -> None:
    scaled = parse_amount("memory", f"{whole}e-{digits}")
    assert (scaled - 1) * 10**digits < whole <= scaled * 10**digits


@pytest.mark.parametrize(
    ("text", "value"),
    [("500m", Fraction(1, 2)), ("0.1", Fraction(1, 10)), ("1n", Fraction(1, 10**9)),
     ("-1.5Ki", Fraction(-1536)), ("100E", Fraction(10**20)), ("1e-3", Fraction(1, 1000))],
)  # fmt: skip
def test_an_exact_value_is_neither_rounded_nor_saturated(text: str, value: Fraction) -> None:
    assert exact_value(text) == value

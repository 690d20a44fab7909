"""Kubernetes quantity notation as exact numbers.

The queue counts CPU in milli-units and every other resource in base units, rounded up, and both
saturate at the largest signed 64-bit number: that is what Kueue's ResourceValue does, and its
decisions depend on it (a request of 9223372036854776 CPUs must exceed a quota, not wrap to a
negative number). The node reads exact fractions, because half a unit of GPU memory is an error.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from typing import Final

MAX_AMOUNT: Final = 2**63 - 1
CPU: Final = "cpu"
PODS: Final = "pods"

# Decimal exponents of the SI suffixes; "n", "u" and "m" are below one unit.
_DECIMAL: Final = {
    "n": -9,
    "u": -6,
    "m": -3,
    "": 0,
    "k": 3,
    "M": 6,
    "G": 9,
    "T": 12,
    "P": 15,
    "E": 18,
}
_BINARY: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_NOTATION: Final = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>\d*)(?:\.(?P<fraction>\d*))?"
    r"(?:(?P<suffix>[numkMGTPE]|[KMGTPE]i)|[eE](?P<exponent>[+-]?\d{1,3}))?",
    re.ASCII,
)
MAX_GPU_UNITS: Final = 1 << 27
"""More MiB, or larger units, than any GPU has: a larger amount was meant in bytes."""
LONGEST: Final = 256
"""Characters; the largest number that counts has 19 digits."""


class QuantityError(ValueError):
    """The text is not a Kubernetes quantity."""


def gpu_mib_problem(amount: int, unit_mib: int = 1) -> str:
    """The reason why an amount of GPU memory, in units of `unit_mib` MiB, must be a mistake, with
    the amount to write instead; empty if it is plausible. `8Gi` is the usual mistake: it is
    8589934592 MiB."""
    if amount <= MAX_GPU_UNITS:
        return ""
    unit = "MiB" if unit_mib == 1 else f"units of {unit_mib} MiB"
    return (
        f"{amount} is more than any GPU has, because the amount is in {unit}:"
        f" write {max(1, (amount >> 20) // unit_mib)}"
    )


def _ceil_div(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)


def saturate(amount: int) -> int:
    """Limit an amount to what a signed 64-bit integer can hold."""
    return max(-MAX_AMOUNT, min(MAX_AMOUNT, amount))


def _digits(text: str) -> tuple[int, int]:
    """The number as `(digits, exponent)`: digits times ten to the power of the exponent."""
    match = _NOTATION.fullmatch(text.strip()) if len(text) <= LONGEST else None
    if match is None or not (match["whole"] or match["fraction"]):
        start = text[:80]
        raise QuantityError(f"expected a quantity such as 1, 500m, 1.5, 2Gi or 1e3, got {start!r}")
    fraction = match["fraction"] or ""
    digits = int((match["whole"] or "0") + fraction)
    exponent = -len(fraction)
    suffix = match["suffix"] or ""
    if suffix in _BINARY:
        digits <<= _BINARY[suffix]
    else:
        exponent += _DECIMAL[suffix] + int(match["exponent"] or 0)
    return (-digits if match["sign"] == "-" else digits), exponent


@lru_cache(maxsize=4096)
def _scaled(text: str, scale: int) -> int:
    digits, exponent = _digits(text)
    numerator = digits * scale
    value = numerator * 10**exponent if exponent >= 0 else _ceil_div(numerator, 10**-exponent)
    return saturate(value)


def exact_value(text: str) -> Fraction:
    """Whole units, neither rounded nor saturated. Raises QuantityError."""
    digits, exponent = _digits(text)
    return Fraction(digits) * Fraction(10) ** exponent


def milli_value(text: str) -> int:
    """Thousandths, rounded up, saturating."""
    return _scaled(text, 1000)


def value(text: str) -> int:
    """Whole units, rounded up, saturating."""
    return _scaled(text, 1)


def parse_amount(resource: str, quantity: object) -> int:
    """The amount of one quantity of `resource`: milli-units for CPU, base units for all else.

    YAML gives plain numbers as int or float, so both are taken; a float is read by its shortest
    decimal text.
    """
    if isinstance(quantity, bool) or not isinstance(quantity, (str, int, float)):
        what = type(quantity).__name__ if quantity is not None else "nothing"
        raise QuantityError(f"a quantity is a number or text, not {what}")
    if isinstance(quantity, int):
        quantity = saturate(quantity)  # Python refuses to write numbers of 4,300 digits and more
    text = str(quantity)
    return milli_value(text) if resource == CPU else value(text)


def _is_binary(resource: str) -> bool:
    return resource in ("memory", "ephemeral-storage") or resource.startswith("hugepages-")


def format_amount(resource: str, amount: int) -> str:
    """The canonical notation, for messages: 1500 of cpu is "1500m", 1048576 of memory is "1Mi"."""
    if resource == CPU:
        return f"{amount}m" if amount % 1000 else _decimal(amount // 1000)
    if _is_binary(resource):
        for suffix, bits in reversed(_BINARY.items()):
            if amount and amount % (1 << bits) == 0:
                return f"{amount >> bits}{suffix}"
        return str(amount)
    return _decimal(amount)


def _decimal(amount: int) -> str:
    for suffix in ("E", "P", "T", "G", "M", "k"):
        unit = int(10 ** _DECIMAL[suffix])
        if amount and amount % unit == 0:
            return f"{amount // unit}{suffix}"
    return str(amount)

"""Parses and formats the quantities that users type: `8Gi`, `8000` (MiB, as HAMi does), `25%`,
cores in percent.

The arithmetic is exact: a limit that is one byte off is a limit that a program will hit.
"""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction

from nodeagent.ports.clients import MemoryAsk
from nodeagent.units import GIB, KIB, MIB, WHOLE_PPM, Bytes, Ppm

MEMORY_FORMS = "an amount such as 8Gi, 8000 (MiB), 512M or a part of the GPU such as 25%"
CORES_FORM = "a percentage of the GPU's time, 1 to 100, such as 50 or 12.5"

LARGEST_BYTES = 1 << 53
"""No GPU has 8 PiB, and every JSON reader keeps integers exact up to here."""

_SUFFIXES = {
    "": MIB,
    "K": 1000,
    "M": 1000**2,
    "G": 1000**3,
    "T": 1000**4,
    "Ki": KIB,
    "Mi": MIB,
    "Gi": GIB,
    "Ti": GIB * KIB,
}
_NUMBER = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,9})?)(%|[KMGT]i?[Bb]?|[Bb])?", re.ASCII)


class QuantityError(ValueError):
    """The text is not a quantity; the message lists the valid forms."""


def parse_memory(text: str) -> MemoryAsk:
    """Parse an amount of memory or a part of the GPU. Raises QuantityError."""
    match = _NUMBER.fullmatch(text.strip())
    if not match:
        raise QuantityError(f"{text!r} is not {MEMORY_FORMS}")
    number, suffix = Fraction(match[1]), match[2] or ""
    if suffix == "%":
        part = number * WHOLE_PPM / 100
        if not 0 < number <= 100:
            raise QuantityError(
                f"{text!r}: a part of the GPU's memory is above 0% and at most 100%"
            )
        return MemoryAsk(part_ppm=Ppm(int(part)))
    unit = 1 if suffix in ("B", "b") else _SUFFIXES[suffix.rstrip("Bb")]
    amount = int(number * unit)
    if not MIB <= amount <= LARGEST_BYTES:
        raise QuantityError(f"{text!r}: memory is at least 1Mi and at most 8192Ti")
    return MemoryAsk(amount_bytes=Bytes(amount))


def parse_cores(text: str) -> Ppm:
    """Percent of the GPU's SM time as parts per million. Raises QuantityError."""
    match = re.fullmatch(r"([0-9]{1,3}(?:\.[0-9]{1,4})?)%?", text.strip(), re.ASCII)
    if not match or not 1 <= Decimal(match[1]) <= 100:
        raise QuantityError(f"{text!r} is not {CORES_FORM}")
    return Ppm(int(Decimal(match[1]) * (WHOLE_PPM // 100)))


def memory_on(ask: MemoryAsk, physical_bytes: Bytes) -> Bytes:
    """Bytes that a request means on a GPU of this size. Parts are rounded down to whole MiB."""
    if ask.amount_bytes is not None:
        return ask.amount_bytes
    assert ask.part_ppm is not None, "a MemoryAsk has one of its two fields"
    if ask.part_ppm == WHOLE_PPM:
        return physical_bytes
    return Bytes(max(MIB, physical_bytes * ask.part_ppm // WHOLE_PPM // MIB * MIB))


def format_bytes(amount: int) -> str:
    """Format bytes with at most three significant figures in binary units: `8Gi`, `1.5Gi`,
    `300Mi`."""
    for unit, suffix in ((GIB, "Gi"), (MIB, "Mi"), (KIB, "Ki")):
        if amount >= unit:
            whole = amount / unit
            digits = 0 if whole >= 100 or amount % unit == 0 else 1
            return f"{whole:.{digits}f}{suffix}"
    return f"{amount}B"


def format_share(share_ppm: int) -> str:
    return f"{share_ppm / (WHOLE_PPM // 100):g}%"


def format_memory_ask(ask: MemoryAsk) -> str:
    if ask.amount_bytes is not None:
        return format_bytes(ask.amount_bytes)
    return format_share(ask.part_ppm or 0)

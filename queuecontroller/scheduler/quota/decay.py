"""Exponential decay in whole numbers: a value that halves every half-life.

Floating point would round differently from one library to the next, and a replay has to give the
same result. A ratio is counted in units of 2**-64. The power is composed from its binary digits,
out of roots of two: 2**-(b1/2 + b2/4 + ...) is the product of 2**-(1/2**k) for each digit that is
set. That is done with 128 bits and cut to 64 at the end, so a ratio is exact to one unit and never
grows with time. Everything is rounded down.
"""

from __future__ import annotations

from functools import lru_cache
from math import isqrt
from typing import Final

FRACTION_BITS: Final = 64
ONE: Final = 1 << FRACTION_BITS
_BITS: Final = 128
_DIGITS: Final = 64


def _roots() -> tuple[int, ...]:
    """2**-(1/2), 2**-(1/4), ... in units of 2**-128."""
    found = [isqrt(1 << (2 * _BITS - 1))]
    while len(found) < _DIGITS:
        found.append(isqrt(found[-1] << _BITS))
    return tuple(found)


_ROOTS: Final = _roots()


@lru_cache(maxsize=1024)
def remaining(elapsed_ns: int, half_life_ns: int) -> int:
    """2**-(elapsed / half-life) in units of 2**-64. The result is 0 at once when the half-life is
    0; a negative time counts as none."""
    if half_life_ns <= 0:
        return 0
    halvings, rest = divmod(max(0, elapsed_ns), half_life_ns)
    digits = (rest << _DIGITS) // half_life_ns
    ratio = 1 << _BITS
    for root in _ROOTS:
        digits <<= 1
        if digits >> _DIGITS:
            digits -= 1 << _DIGITS
            ratio = ratio * root >> _BITS
    return ratio >> (_BITS - FRACTION_BITS + halvings)


def approach(value: int, target: int, ratio: int) -> int:
    """`value` on its way to `target` when `ratio` of the distance is left; all three in units of
    2**-64, rounded down."""
    return target + ((value - target) * ratio >> FRACTION_BITS)

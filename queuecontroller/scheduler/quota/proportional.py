"""Distribution of a capacity in proportion to weights, in whole units."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction


def distribute(capacity: int, weights: Mapping[str, Fraction]) -> dict[str, int]:
    """The units of each name: the exact part, rounded down, and of the units left over one each to
    the largest remainders; of equal remainders to the lower name. Nothing where all weights are
    0."""
    total = sum(weights.values(), Fraction(0))
    if total <= 0:
        return dict.fromkeys(weights, 0)
    exact = {name: capacity * weight / total for name, weight in weights.items()}
    found = {name: int(amount) for name, amount in exact.items()}
    left = capacity - sum(found.values())
    for name in sorted(exact, key=lambda one: (found[one] - exact[one], one))[:left]:
        found[name] += 1
    return found

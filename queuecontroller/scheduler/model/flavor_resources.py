"""(flavor, resource) pairs by number, as trees, usages and assignments refer to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NewType

Fr = NewType("Fr", int)
"""Number of one (flavor, resource) pair."""

Usage = Mapping[Fr, int]


class FlavorResources:
    """Numbers for (flavor, resource) pairs, assigned in the order of first use."""

    __slots__ = ("_numbers", "_pairs")

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, str], Fr] = {}
        self._pairs: list[tuple[str, str]] = []

    def number(self, flavor: str, resource: str) -> Fr:
        pair = (flavor, resource)
        known = self._numbers.get(pair)
        if known is None:
            known = Fr(len(self._pairs))
            self._numbers[pair] = known
            self._pairs.append(pair)
        return known

    def pair(self, fr: Fr) -> tuple[str, str]:
        return self._pairs[fr]

    def resource(self, fr: Fr) -> str:
        return self._pairs[fr][1]

    def by_resource(self, usage: Usage) -> dict[str, int]:
        """Usage by resource, summed over all flavors."""
        total: dict[str, int] = {}
        for fr, amount in usage.items():
            if amount:
                resource = self._pairs[fr][1]
                total[resource] = total.get(resource, 0) + amount
        return total

"""Changes what containers request before it is counted: Kueue's resource transformations.

Each transformation whose input a container requests adds its outputs, input times factor, times the
container's amount of another resource where `multiply_by` names one; `Replace` drops the input,
`Retain` keeps it. Of what the container requests itself, resources with an excluded prefix or name
are dropped; they count as inputs and multipliers all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from sluicecommon.kubernetes.quantity import CPU, saturate


class Strategy(StrEnum):
    RETAIN = "Retain"
    REPLACE = "Replace"


@dataclass(frozen=True, slots=True)
class Transformation:
    input: str
    strategy: Strategy
    outputs: Mapping[str, int]
    """Factor by output resource, counted as amounts of that resource are."""
    multiply_by: str | None = None


@dataclass(frozen=True, slots=True)
class Transformations:
    rules: tuple[Transformation, ...] = ()
    excluded_prefixes: tuple[str, ...] = ()
    excluded_names: frozenset[str] = frozenset()
    """Resources that are counted in another way than by what containers request of them."""

    def of_container(self, requests: Mapping[str, int]) -> dict[str, int]:
        """Requests of one container after the transformations."""
        rules = {rule.input: rule for rule in self.rules}
        result: dict[str, int] = {}
        for name, amount in requests.items():
            rule = rules.get(name)
            kept = rule is None or rule.strategy is Strategy.RETAIN
            if kept and not self._excludes(name):
                result[name] = saturate(result.get(name, 0) + amount)
            if rule is None:
                continue
            times = requests.get(rule.multiply_by, 0) if rule.multiply_by else 0
            for output, factor in rule.outputs.items():
                more = _product(name, amount, factor)
                if times:
                    more = _product(str(rule.multiply_by), times, more)
                result[output] = saturate(result.get(output, 0) + more)
        return result

    def _excludes(self, name: str) -> bool:
        return name in self.excluded_names or name.startswith(self.excluded_prefixes)


def _product(resource: str, amount: int, factor: int) -> int:
    """amount x factor, where an amount of CPU is in thousandths; rounded up."""
    return -(-amount * factor // 1000) if resource == CPU else amount * factor

"""Evaluation of device selectors in CEL.

The part of CEL that Kubernetes documents for devices: logic, comparisons, `in`, text functions,
quantities, versions, optional fields, `has`, `cel.bind`, `exists` and `all`. `matches` is not among
it: the engine for regular expressions here is not safe from expressions that never end. What is not
known is refused by its name. Every step counts, also those of a comparison of lists within lists,
which may share their parts.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from queuecontroller.gpushares.claims.cel_parse import DEEPEST, LONGEST, CelError, Node, parse
from sluicecommon.budget import TEXT_STEP, Budget, BudgetSpent
from sluicecommon.kubernetes.quantity import QuantityError, milli_value

MAX_STEPS: Final = 20_000
MAX_CACHED: Final = 256 << 10
"""Characters of parsed expressions that are kept; a tree takes some 60 times as many bytes."""
MAX_NUMBER: Final = 2**63
LONGEST_VERSION: Final = 256
"""Characters; what devices publish has at most 64."""
_VERSION: Final = re.compile(
    r"(\d{1,9})\.(\d{1,9})\.(\d{1,9})(?:-([0-9A-Za-z.-]+))?(?:\+.*)?", re.ASCII
)
_OPTIONAL_METHODS: Final = {"orValue": 1, "hasValue": 0}
"""Methods of optional values with the number of their arguments."""


@dataclass(frozen=True, slots=True, order=True)
class Quantity:
    thousandths: int


@dataclass(frozen=True, slots=True, order=True)
class Version:
    numbers: tuple[int, int, int]
    released: bool
    """False for a pre-release, which sorts before the release."""
    before: tuple[tuple[bool, int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Maybe:
    value: Any = None
    is_there: bool = False


@dataclass(frozen=True, slots=True)
class Device:
    driver: str
    attributes: Mapping[str, Mapping[str, Any]]
    """Attributes by domain, then by name."""
    capacity: Mapping[str, Mapping[str, Quantity]]
    shared: bool


def quantity(text: object) -> Quantity:
    """Raises CelError."""
    if not isinstance(text, str | int | float):
        raise CelError(f"expected a quantity, got {_kind(text)}")
    if isinstance(text, str) and len(text) > LONGEST_VERSION:
        raise CelError(f"a quantity of more than {LONGEST_VERSION} characters")
    try:
        return Quantity(milli_value(str(text)))
    except QuantityError as error:
        raise CelError(str(error)) from None


def version(text: object) -> Version:
    """Parse a semantic version with three numbers, as Kubernetes requires them. Raises CelError."""
    if not isinstance(text, str):
        raise CelError(f"expected a version such as 1.2.3, got {_kind(text)}")
    match = _VERSION.fullmatch(text) if len(text) <= LONGEST_VERSION else None
    if match is None:
        raise CelError(f"expected a version such as 1.2.3, got {text[:40]!r}")
    parts = match[4].split(".") if match[4] else []
    before = tuple((not p.isdigit(), int(p) if p.isdigit() else 0, p) for p in parts)
    return Version((int(match[1]), int(match[2]), int(match[3])), not before, before)


class ParsedExpressions:
    """The trees of the expressions used last, or their errors."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Node | str] = OrderedDict()
        self.characters = 0

    def __contains__(self, text: str) -> bool:
        return text in self._kept

    def __call__(self, text: str) -> Node | str:
        found = self._kept.get(text)
        if found is not None:
            self._kept.move_to_end(text)
            return found
        try:
            found = parse(text)
        except CelError as error:
            return str(error)
        self._kept[text] = found
        self.characters += len(text)
        while self.characters > MAX_CACHED:
            oldest, _ = self._kept.popitem(last=False)
            self.characters -= len(oldest)
        return found


_parsed: Final = ParsedExpressions()


def check(text: str) -> str:
    """The syntax error of an expression; empty if it is valid."""
    found = _parsed(text)
    return found if isinstance(found, str) else ""


def matches(text: str, device: Device, whole: Budget | None = None) -> bool:
    """True if the selector matches the device. `whole` is the budget of all selectors that are
    evaluated together. Raises CelError."""
    try:
        if whole is not None and text not in _parsed:
            whole.spend(len(text))
        tree = _parsed(text)
        if isinstance(tree, str):
            raise CelError(tree)
        found = _Run({"device": device}, Budget(MAX_STEPS, whole)).of(tree)
    except BudgetSpent as spent:
        raise CelError(str(spent)) from None
    if not isinstance(found, bool):
        raise CelError(f"evaluates to {_kind(found)}, not true or false")
    return found


@dataclass(slots=True)
class _Run:
    names: dict[str, Any]
    budget: Budget
    deep: int = field(default=0)

    def of(self, node: Node) -> Any:
        self.budget.spend()
        if self.deep > DEEPEST:
            raise CelError(f"deeper than {DEEPEST}")
        kind, *parts = node
        method: Callable[..., Any] = getattr(self, f"_{kind}")
        self.deep += 1
        try:
            return method(*parts)
        finally:
            self.deep -= 1

    def _value(self, value: Any) -> Any:
        return value

    def _list(self, items: tuple[Node, ...]) -> list[Any]:
        return [self.of(one) for one in items]

    def _name(self, name: str) -> Any:
        if name not in self.names:
            raise CelError(f"{name} is not known; there is device")
        return self.names[name]

    def _if(self, condition: Node, yes: Node, no: Node) -> Any:
        return self.of(yes) if self._truth(condition) else self.of(no)

    def _or(self, one: Node, other: Node) -> bool:
        return self._either(one, other, True)

    def _and(self, one: Node, other: Node) -> bool:
        return self._either(one, other, False)

    def _either(self, one: Node, other: Node, decides: bool) -> bool:
        """Evaluate `||` or `&&`: one side that decides is enough, even if the other side fails."""
        try:
            if self._truth(one) is decides:
                return decides
        except CelError:
            if self._truth(other) is decides:
                return decides
            raise
        return self._truth(other)

    def _truth(self, node: Node) -> bool:
        found = self.of(node)
        if not isinstance(found, bool):
            raise CelError(f"{_kind(found)} is not true or false")
        return found

    def _not(self, node: Node) -> bool:
        return not self._truth(node)

    def _minus(self, node: Node) -> Any:
        found = self.of(node)
        if isinstance(found, bool) or not isinstance(found, int | float):
            raise CelError(f"{_kind(found)} has no negative")
        return -found

    def _sum(self, sign: str, one: Node, other: Node) -> Any:
        a, b = self.of(one), self.of(other)
        if _kind(a) != _kind(b) or _kind(a) not in ("a number", "text", "a list"):
            raise CelError(f"{_kind(a)} {sign} {_kind(b)} is not known")
        if sign == "+" and not isinstance(a, int | float) and len(a) + len(b) > LONGEST:
            raise CelError(f"longer than {LONGEST}")
        if _kind(a) != "a number":
            if sign == "-":
                raise CelError(f"{_kind(a)} - {_kind(b)} is not known")
            self.budget.spend((len(a) + len(b)) // (1 if isinstance(a, list) else TEXT_STEP))
            return a + b
        found = a + b if sign == "+" else a - b
        if not -MAX_NUMBER <= found < MAX_NUMBER:
            raise CelError("a number of more than 64 bits")
        return found

    def _compare(self, sign: str, one: Node, other: Node) -> bool:
        a, b = self.of(one), self.of(other)
        if _kind(a) != _kind(b):
            raise CelError(f"{_kind(a)} is compared with {_kind(b)}")
        if sign in ("==", "!="):
            return self._equal(a, b) is (sign == "==")
        if _kind(a) not in ("a number", "text"):
            raise CelError(f"{_kind(a)} has no {sign}; use compareTo, isLessThan, isGreaterThan")
        if isinstance(a, str):
            self.budget.spend_text(a)
        less, same = bool(a < b), bool(a == b)
        return {"<": less, "<=": less or same, ">": not (less or same), ">=": not less}[sign]

    def _in(self, one: Node, other: Node) -> bool:
        value, among = self.of(one), self.of(other)
        if not isinstance(among, list | Mapping):
            raise CelError(f"nothing is in {_kind(among)}")
        if isinstance(among, Mapping) and not isinstance(value, str):
            raise CelError(f"expected the name of a field, got {_kind(value)}")
        if isinstance(among, Mapping):
            return value in among
        return any(self._equal(value, one) for one in among)

    def _equal(self, a: Any, b: Any) -> bool:
        """Values of different kinds differ. Raises BudgetSpent."""
        self.budget.spend()
        if a is b:
            return True
        if _kind(a) != _kind(b):
            return False
        if isinstance(a, str):
            self.budget.spend_text(a)
        elif isinstance(a, Maybe):
            return a.is_there is b.is_there and self._equal(a.value, b.value)
        elif isinstance(a, list):
            return len(a) == len(b) and all(map(self._equal, a, b))
        elif isinstance(a, Mapping):
            return len(a) == len(b) and all(
                key in b and self._equal(one, b[key]) for key, one in a.items()
            )
        return bool(a == b)

    def _field(self, node: Node, name: str, optional: bool) -> Any:
        return self._at(self.of(node), name, optional)

    def _index(self, node: Node, key: Node, optional: bool) -> Any:
        return self._at(self.of(node), self.of(key), optional)

    def _at(self, there: Any, key: Any, optional: bool) -> Any:
        if isinstance(there, Maybe):
            if not there.is_there:
                return there
            there, optional = there.value, True
        found = self._found(there, key)
        if optional:
            return found
        if not found.is_there:
            raise CelError(f"no such key: {_shown(key)}")
        return found.value

    def _found(self, there: Any, key: Any) -> Maybe:
        if isinstance(there, Device | Mapping) and not isinstance(key, str):
            raise CelError(f"expected the name of a field, got {_kind(key)}")
        if isinstance(there, Device):
            known = {
                "driver": there.driver,
                "attributes": there.attributes,
                "capacity": there.capacity,
                "allowMultipleAllocations": there.shared,
            }
            if key not in known:
                raise CelError(f"device has no {_shown(key)}; it has {', '.join(known)}")
            return Maybe(known[key], True)
        if isinstance(there, Mapping):
            if key in there:
                return Maybe(there[key], True)
            # A domain in which the device publishes nothing is empty, not missing.
            domains = any(there is one for one in self._by_domain())
            return Maybe({}, True) if domains else Maybe()
        if isinstance(there, list) and isinstance(key, int) and not isinstance(key, bool):
            return Maybe(there[key], True) if 0 <= key < len(there) else Maybe()
        raise CelError(f"{_kind(there)} has no {_shown(key)}")

    def _by_domain(self) -> tuple[object, object]:
        device = self.names["device"]
        return device.attributes, device.capacity

    def _call(self, name: str, arguments: tuple[Node, ...]) -> Any:
        if name == "has" and len(arguments) == 1 and arguments[0][0] == "field":
            _, node, key, _ = arguments[0]
            assert isinstance(node, tuple)
            return self._found(self.of(node), key).is_there
        makers: dict[str, Callable[[Any], Any]] = {
            "quantity": quantity,
            "semver": version,
            "size": _size,
        }
        if name not in makers or len(arguments) != 1:
            raise CelError(f"function {name} with {len(arguments)} arguments is not known here")
        return makers[name](self.of(arguments[0]))

    def _method(self, node: Node, name: str, arguments: tuple[Node, ...]) -> Any:
        if node == ("name", "cel") and name == "bind" and len(arguments) == 3:
            return self._with(_variable(arguments[0]), self.of(arguments[1]), arguments[2])
        there = self.of(node)
        if name in ("exists", "all") and len(arguments) == 2 and isinstance(there, list):
            variable = _variable(arguments[0])
            each = (self._with(variable, one, arguments[1]) is True for one in there)
            return any(each) if name == "exists" else all(each)
        if isinstance(there, Maybe) and _OPTIONAL_METHODS.get(name) == len(arguments):
            if name == "hasValue":
                return there.is_there
            return there.value if there.is_there else self.of(arguments[0])
        known = _METHODS.get((_kind(there), name))
        if known is None or len(arguments) != known[0]:
            raise CelError(
                f"function {name} of {_kind(there)} with {len(arguments)} arguments is not known"
                " here"
            )
        given = [self.of(one) for one in arguments]
        if any(_kind(one) != _kind(there) for one in given):
            raise CelError(f"{name} of {_kind(there)} takes {_kind(there)}")
        self.budget.spend_text(*(one for one in (there, *given) if isinstance(one, str)))
        return known[1](there, *given)

    def _with(self, name: str, value: Any, body: Node) -> Any:
        before = dict(self.names)
        self.names[name] = value
        try:
            return self.of(body)
        finally:
            self.names = before


def _variable(node: Node) -> str:
    if node[0] != "name" or node[1] == "device":
        raise CelError("a new name is expected")
    return str(node[1])


def _size(value: Any) -> int:
    if not isinstance(value, str | list | Mapping):
        raise CelError(f"{_kind(value)} has no size")
    return len(value)


def _shown(key: Any) -> str:
    """A key for a message. Only texts and numbers: a list of lists may be longer than memory."""
    return str(key)[:100] if isinstance(key, str | int | float) else _kind(key)


def _order(a: Any, b: Any) -> int:
    return int(a > b) - int(a < b)


_ORDERED: Final[dict[str, tuple[int, Callable[..., Any]]]] = {
    "compareTo": (1, _order),
    "isLessThan": (1, lambda a, b: a < b),
    "isGreaterThan": (1, lambda a, b: a > b),
}
_METHODS: Final[dict[tuple[str, str], tuple[int, Callable[..., Any]]]] = {
    **{("a quantity", name): one for name, one in _ORDERED.items()},
    **{("a version", name): one for name, one in _ORDERED.items()},
    ("a version", "major"): (0, lambda a: a.numbers[0]),
    ("a version", "minor"): (0, lambda a: a.numbers[1]),
    ("a version", "patch"): (0, lambda a: a.numbers[2]),
    ("text", "startsWith"): (1, str.startswith),
    ("text", "endsWith"): (1, str.endswith),
    ("text", "contains"): (1, lambda a, b: b in a),
    ("text", "lowerAscii"): (0, str.lower),
    ("text", "upperAscii"): (0, str.upper),
    ("text", "size"): (0, len),
    ("a list", "size"): (0, len),
}


def _kind(value: Any) -> str:
    for kind, name in (
        (bool, "true or false"),
        (int | float, "a number"),
        (str, "text"),
        (list, "a list"),
        (Quantity, "a quantity"),
        (Version, "a version"),
        (Maybe, "what may be missing"),
        (Device, "a device"),
    ):
        if isinstance(value, kind):
            return name
    return "fields"

"""The normal form of an object: two documents with one normal form mean the same to Kubernetes.

A client with types reads an object into its structs and writes all of it back: it fills in
defaults, leaves out empty lists, maps and texts, writes `null` and `{}` for structs that it does
not set, and writes quantities in their canonical notation. None of that is a change.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, assert_never

from queuecontroller.kueueapi.fields import (
    STORED,
    Amount,
    Field,
    Fields,
    Flag,
    ListOf,
    MapOf,
    PodTemplate,
    Text,
    Time,
    Type,
    Version,
    Whole,
)
from queuecontroller.kueueapi.shared_fields import LABEL_SELECTOR
from sluicecommon.kubernetes.quantity import QuantityError, exact_value

_EMPTY: Final[tuple[object, ...]] = (None, "", [], {})
_QUANTITIES: Final = frozenset({"requests", "limits", "overhead"})
"""Maps of quantities in a pod template."""
_PRESENT: Final = frozenset({"emptyDir", "namespaceSelector", "labelSelector", "podSelector"})
"""Structs of a pod template that say something by their presence, even if they are empty."""
_UNSET: Final = frozenset(
    {
        *("hostNetwork", "hostPID", "hostIPC", "stdin", "stdinOnce", "tty", "readOnly"),
        *("hostPort", "initialDelaySeconds", "timeoutSeconds", "periodSeconds"),
        *("successThreshold", "failureThreshold"),
    }
)
"""Fields of a pod template in which false and 0 are left out when an object is written."""


def same_meaning(one: object, other: object, field: Field, version: Version | None) -> bool:
    """True if two values of a field differ at most as a client with types changes them."""
    if one == other:
        return True
    known = version or STORED
    return _of_field(one, field, known) == _of_field(other, field, known)


def _of_field(value: object, field: Field, version: Version) -> object:
    if value is None:
        old = version is not STORED and field.old_default is not None
        value = field.old_default if old else field.default
    return _normal(value, field.type, version)


def _normal(value: object, type_: Type, version: Version) -> object:
    match type_:
        case Text() | Whole() | Flag():
            return None if value == "" else value
        case Amount():
            return _amount(value)
        case Time():
            return _moment(value)
        case PodTemplate():
            return _template(value)
        case Fields():
            return _fields(value, type_, version)
        case ListOf():
            if not isinstance(value, list):
                return value
            return [_normal(one, type_.item, version) for one in value] or None
        case MapOf():
            if not isinstance(value, Mapping):
                return value
            return {name: _normal(one, type_.item, version) for name, one in value.items()} or None
        case _:
            assert_never(type_)


def _fields(value: object, fields: Fields, version: Version) -> object:
    if not isinstance(value, Mapping):
        return value
    here = {name: one for name, one in fields.of.items() if version in one.versions}
    made = {name: one for name, one in value.items() if name not in here and one is not None}
    for name, row in here.items():
        if (found := _of_field(value.get(name), row, version)) is not None:
            made[name] = found
    # An empty selector selects everything, a missing one nothing.
    return made if made or fields is LABEL_SELECTOR else None


def _amount(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return value
    try:
        return exact_value(str(value))
    except QuantityError:
        return value


def _moment(value: object) -> object:
    try:
        found = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return value
    if found is None or found.tzinfo is None:
        return value
    return found.astimezone(UTC).replace(microsecond=0)


def _template(value: object) -> Any:
    if isinstance(value, Mapping):
        made: dict[str, Any] = {}
        for name, one in value.items():
            if name in _QUANTITIES and isinstance(one, Mapping):
                found: Any = {key: _amount(amount) for key, amount in one.items()}
            else:
                found = _template(one)
            unset = name in _UNSET and found in (False, 0)
            if not unset and (found not in _EMPTY or (found == {} and name in _PRESENT)):
                made[name] = found
        return made
    if isinstance(value, list):
        return [_template(one) for one in value]
    return value

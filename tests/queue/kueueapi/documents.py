"""Objects by chance, made from the table of fields itself: whatever a version's schema allows."""

from __future__ import annotations

import functools
from typing import Any, assert_never

from hypothesis import strategies as st

from queuecontroller.kueueapi import GROUP, KINDS
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

NAMES = ("a", "b-1", "c.d", "kueue.x-k8s.io/e")
TIME = "2026-11-22T10:00:00Z"


@functools.cache
def documents(kind: str, version: Version) -> st.SearchStrategy[dict[str, Any]]:
    head = st.fixed_dictionaries(
        {"name": st.just("x")},
        optional={
            "annotations": st.dictionaries(
                st.sampled_from(("one", "two")), st.just("y"), min_size=1
            )
        },
    )
    rest = _fields(KINDS[kind].fields, version)
    return st.builds(
        lambda metadata, body: {
            "apiVersion": f"{GROUP}/{version}",
            "kind": kind,
            "metadata": metadata,
            **body,
        },
        head,
        rest,
    )


def _fields(fields: Fields, version: Version) -> st.SearchStrategy[dict[str, Any]]:
    here = {name: one for name, one in fields.of.items() if version in one.versions}
    wanted = {name: _value(one.type, version) for name, one in here.items() if one.required}
    more = {name: _value(one.type, version) for name, one in here.items() if not one.required}
    return st.fixed_dictionaries(wanted, optional=more)


def _value(type_: Type, version: Version) -> st.SearchStrategy[Any]:
    match type_:
        case Text():
            old = () if version is STORED else type_.old_choices
            if type_.choices:
                return st.sampled_from((*type_.choices, *old))
            return st.sampled_from(NAMES[:3])
        case Whole(least, _, _):
            return st.integers(max(0, least), 5)
        case Flag():
            return st.booleans()
        case Amount():
            return st.sampled_from(["1", "500m", 3, "2Gi"])
        case Time():
            return st.just(TIME)
        case PodTemplate():
            return st.just({"spec": {"containers": []}})
        case Fields():
            return _fields(type_, version)
        case ListOf():
            return st.lists(
                _value(type_.item, version),
                min_size=type_.least,
                max_size=2,
                unique_by=_keys(type_),
            )
        case MapOf():
            return st.dictionaries(
                st.sampled_from(NAMES), _value(type_.item, version), min_size=1, max_size=2
            )
        case _:
            assert_never(type_)


def _keys(list_: ListOf) -> Any:
    def of(entry: Any) -> str:
        if not isinstance(entry, dict):
            return str(entry)
        if not list_.keys:
            return repr(sorted(entry.items(), key=str))
        assert isinstance(list_.item, Fields)
        rows: dict[str, Field] = dict(list_.item.of)
        return repr([entry.get(one, rows[one].default) for one in list_.keys])

    return of


def typed(document: dict[str, Any]) -> dict[str, Any]:
    """The object after a client with types has read it and written it back: with defaults, without
    empty lists, maps and texts, with quantities in their canonical notation."""
    version = Version(str(document["apiVersion"]).rpartition("/")[2])
    rows = {
        name: one for name, one in KINDS[document["kind"]].fields.of.items() if name != "status"
    }
    body = {name: _typed_field(document.get(name), one, version) for name, one in rows.items()}
    return {**document, **{name: one for name, one in body.items() if one is not None}}


def _typed_field(value: Any, field: Field, version: Version) -> Any:
    if value is None and version is not STORED and field.old_default is not None:
        value = field.old_default
    return _typed(field.default if value is None else value, field.type, version)


def _typed(value: Any, type_: Type, version: Version) -> Any:
    match type_:
        case Fields(of) if isinstance(value, dict):
            made = {
                name: _typed_field(value.get(name), one, version)
                for name, one in of.items()
                if version in one.versions
            }
            return {name: one for name, one in made.items() if one not in (None, "", [])}
        case ListOf(item=item) if isinstance(value, list):
            return [_typed(one, item, version) for one in value] or None
        case MapOf(item=item) if isinstance(value, dict):
            return {name: _typed(one, item, version) for name, one in value.items()} or None
        case Amount() if value is not None:
            return {"1": "1000m", "500m": "0.5", 3: "3", "2Gi": "2048Mi"}.get(value, value)
        case PodTemplate() if isinstance(value, dict):
            return {"metadata": {"creationTimestamp": None}, **value}
        case _:
            return value

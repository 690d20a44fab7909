"""Check of one object of Kueue's against the table of its fields: every deviation is a problem.

The table is the only list of fields. Fields that a builder reads for the scheduler are checked a
second time here; the messages are the reader's own, so that a problem which both find is reported
once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Final, TypeVar, assert_never

from queuecontroller.kueueapi import KINDS
from queuecontroller.kueueapi.fields import (
    EVERY,
    WHAT,
    Amount,
    Field,
    Fields,
    Flag,
    Kind,
    ListOf,
    MapOf,
    PodTemplate,
    Text,
    Time,
    Version,
    Whole,
)
from sluicecommon.reader import ManifestError, Problem, Reader, shown

T = TypeVar("T")

_KUBERNETES_OWN: Final = ("apiVersion", "kind", "metadata")


def read_kind(build: Callable[[Reader], T], kind: str, value: object, path: str) -> T:
    """Run one builder over a whole object and raise everything that it and the table found. Where
    both found a problem of one field, the table's message is used: the table knows which values of
    a type the field allows."""
    reader = Reader(value, path)
    result = build(reader)
    by_table: dict[str, list[Problem]] = {}
    for one in _checked(value, path, KINDS[kind]):
        by_table.setdefault(one.field, []).append(one)
    problems: list[Problem] = []
    for one in reader.problems:
        problems += by_table.pop(one.field, [one])
    problems += chain.from_iterable(by_table.values())
    if problems:
        raise ManifestError(problems)
    return result


def check_kind(kind: str, value: object, path: str = "") -> None:
    """Check an object that no builder reads, since the scheduler does not use it. Raises
    ManifestError."""
    read_kind(lambda reader: reader.child("metadata").required("name"), kind, value, path)


def problems_as_api(value: object, kind: Kind) -> list[Problem]:
    return _checked(value, "", kind, as_api=True)


def _checked(value: object, path: str, kind: Kind, as_api: bool = False) -> list[Problem]:
    """Problems of an object. `status` is not checked, since a controller wrote it and a user cannot
    correct it."""
    reader = Reader(value, path)
    wanted = {name: one for name, one in kind.fields.of.items() if name != "status"}
    _Checking(version_of(value), as_api).rows(reader, wanted, (*_KUBERNETES_OWN, "status"))
    return reader.problems


def version_of(value: object) -> Version | None:
    """The version of an object; None: it has none, or one that is rejected elsewhere."""
    written = value.get("apiVersion") if isinstance(value, Mapping) else None
    version = str(written)[:200].rpartition("/")[2]
    return Version(version) if version in set(Version) else None


@dataclass(frozen=True, slots=True)
class _Checking:
    version: Version | None
    as_api: bool
    """True: check as the API server does: names must match their patterns, required lists may not
    be omitted, and only the version's own fields are valid. Files may omit these and may mix
    versions, since they are only used for decisions."""

    def rows(
        self, reader: Reader, rows: Mapping[str, Field], besides: tuple[str, ...] = ()
    ) -> None:
        if self.as_api:
            rows = {name: one for name, one in rows.items() if self.version in one.versions}
        meant = reader.known(*rows, *besides)
        for name, field in rows.items():
            # A misspelt field is one mistake, not two.
            if name not in meant or reader.raw(name) is not None:
                self.field(reader, name, field)

    def fields(self, reader: Reader, fields: Fields) -> None:
        self.rows(reader, fields.of)

    def required(self, field: Field) -> bool:
        versions = EVERY if self.version is None else {self.version}
        counts = self.as_api or not isinstance(field.type, ListOf)
        return field.required and counts and versions <= field.versions

    def field(self, reader: Reader, key: str, field: Field) -> None:
        if reader.raw(key) is None:
            if self.required(field):
                reader.missing(key)
            return
        if field.required and reader.raw(key) == "":
            reader.missing(key)
            return
        match field.type:
            case Text():
                self.text(reader, key, field.type)
            case Whole(least, most, _):
                reader.whole(key, least=least, most=most)
            case Flag():
                reader.flag(key)
            case Amount(auto):
                if not (auto and reader.raw(key) == "auto"):
                    reader.amount(key, "")
            case Time():
                reader.time_ns(key)
            case PodTemplate():
                reader.child(key)
            case Fields():
                self.fields(reader.child(key), field.type)
            case ListOf():
                self.list(reader, key, field.type)
            case MapOf():
                self.map(reader, key, field.type)
            case _:
                assert_never(field.type)

    def text(self, reader: Reader, key: str, text: Text) -> None:
        found = reader.text(key)
        if text.choices:
            reader.one_of(key, (*text.choices, *text.old_choices))
        elif found and (wrong := self.wrong_text(found, text)):
            reader.problem(key, wrong, "write one that is")

    def wrong_text(self, found: str, text: Text) -> str:
        if text.longest and len(found) > text.longest:
            return f"{shown(found)} has {len(found)} characters, more than {text.longest}"
        if self.as_api and text.pattern and not _compiled(text.pattern).fullmatch(found):
            return f"{shown(found)} is not {WHAT.get(text.pattern, f'of the form {text.pattern}')}"
        return ""

    def list(self, reader: Reader, key: str, list_: ListOf) -> None:
        count = reader.entries(key)
        if count > list_.most:
            what = f"has {count} entries, more than {list_.most}"
            reader.problem(key, what, "take some out")
            return  # one error, reported once
        if count < list_.least:
            reader.missing(key)
        if not isinstance(list_.item, Fields):
            texts = reader.texts(key)
            for i, text in enumerate(texts):
                if isinstance(list_.item, Text) and (wrong := self.wrong_text(text, list_.item)):
                    reader.problem(f"{key}[{i}]", wrong, "write one that is")
            if list_.unique:
                _check_unique(reader, key, list(texts))
            return
        entries = reader.children(key)
        for one in entries:
            self.fields(one, list_.item)
        if list_.keys:
            _check_unique(reader, key, [_key(one, list_.keys, list_.item) for one in entries])

    def map(self, reader: Reader, key: str, map_: MapOf) -> None:
        found = reader.child(key)
        if len(found.names()) > map_.most:
            what = f"has {len(found.names())} entries, more than {map_.most}"
            reader.problem(key, what, "take some out")
            return
        if isinstance(map_.item, Amount):
            found.amounts_here()
            return
        for name, value in reader.labels(key).items():
            if isinstance(map_.item, Text) and (wrong := self.wrong_text(value, map_.item)):
                found.problem(name, wrong, "write one that is")


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.ASCII)


def _key(entry: Reader, keys: tuple[str, ...], item: Fields) -> str:
    """The key of an entry; empty where it is missing, which is reported already."""
    found = [entry.raw(one) or item.of[one].default or "" for one in keys]
    return " ".join(map(str, found)) if all(found) else ""


def _check_unique(reader: Reader, key: str, names: list[str]) -> None:
    seen: dict[str, int] = {}
    for i, name in enumerate(names):
        first = seen.setdefault(name, i)
        if name and first != i:
            what = f"{shown(name)} is given twice (the first is [{first}])"
            reader.problem(f"{key}[{i}]", what, "remove one")

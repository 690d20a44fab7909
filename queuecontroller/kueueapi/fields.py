"""Rows of the table: a field's type, its bounds, its versions, and its description.

A row is read twice: by the manifest reader, which reports an error as text, and by `crds.py`, which
writes the schema by which the API server rejects the same. So both know the same fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias


class Version(StrEnum):
    V1ALPHA1 = "v1alpha1"
    V1ALPHA2 = "v1alpha2"
    V1BETA1 = "v1beta1"
    V1BETA2 = "v1beta2"


STORED: Final = Version.V1BETA2
OLD: Final = frozenset({Version.V1ALPHA2, Version.V1BETA1})
"""Versions with v1beta1's fields. Only ClusterQueue is served as v1alpha2: manifests of that time
that have a ClusterQueue's fields as v1beta1 knew them are still in use."""
NEW: Final = frozenset({Version.V1BETA2})
EVERY: Final = OLD | NEW

NAME: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
"""Pattern of an object's name in Kubernetes (a DNS subdomain)."""
LABEL_KEY: Final = (
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
    r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)$"
)
WHAT: Final = {
    NAME: "a name: lowercase letters, digits, '-' and '.', a letter or digit at both ends",
    LABEL_KEY: "a label's key, such as example.com/pool",
}
"""Descriptions of the patterns, for messages."""


@dataclass(frozen=True, slots=True)
class Text:
    pattern: str = ""
    longest: int = 0
    """0: no bound of its own."""
    choices: tuple[str, ...] = ()
    old_choices: tuple[str, ...] = ()
    """Choices that only the old versions have."""
    may_be_empty: bool = False
    """True for a required text that clients write even if they have nothing to say."""


@dataclass(frozen=True, slots=True)
class Whole:
    least: int = -(1 << 31)
    most: int = (1 << 31) - 1
    wide: bool = False
    """64 bits."""


@dataclass(frozen=True, slots=True)
class Flag:
    pass


@dataclass(frozen=True, slots=True)
class Amount:
    """A quantity as Kubernetes writes it, 0 or more."""

    auto: bool = False
    """The word `auto` is taken as well: what the nodes have."""


@dataclass(frozen=True, slots=True)
class Time:
    pass


@dataclass(frozen=True, slots=True)
class PodTemplate:
    """Kubernetes' own, and larger than all the rest together: stored as it is. What queueing reads
    in it is checked by the reader."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule in CEL that a schema cannot express."""

    expression: str
    message: str


@dataclass(frozen=True, slots=True)
class Fields:
    of: Mapping[str, Field]
    rules: tuple[Rule, ...] = ()
    atomic: bool = False
    """True if server-side apply replaces them as a whole, as in Kueue."""


@dataclass(frozen=True, slots=True)
class ListOf:
    item: Type
    most: int
    """Limit of the number of entries."""
    least: int = 0
    keys: tuple[str, ...] = ()
    """Key fields: no two entries are equal in all of them."""
    unique: bool = False
    """True for a list of values that may not repeat."""
    atomic: bool = False
    """True if server-side apply replaces the list as a whole, as in Kueue; entries may not repeat
    all the same."""


@dataclass(frozen=True, slots=True)
class MapOf:
    item: Type
    most: int
    atomic: bool = False
    """True if server-side apply replaces the map as a whole, as in Kueue."""


Type: TypeAlias = Text | Whole | Flag | Amount | Time | PodTemplate | Fields | ListOf | MapOf


@dataclass(frozen=True, slots=True)
class Field:
    text: str
    """Description for `kubectl explain`."""
    type: Type
    required: bool = False
    versions: frozenset[Version] = EVERY
    default: object = None
    old_default: object = None
    """Default of the old versions, where it differs."""
    rules: tuple[Rule, ...] = ()


@dataclass(frozen=True, slots=True)
class Column:
    """A column of `kubectl get`."""

    name: str
    path: str
    text: str
    type: str = "string"
    wide: bool = False
    """True for a column shown with `-o wide` only."""
    old_path: str = ""


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    plural: str
    text: str
    fields: Fields
    """All but apiVersion, kind and metadata."""
    short_names: tuple[str, ...] = ()
    namespaced: bool = False
    versions: tuple[Version, ...] = (Version.V1BETA1, Version.V1BETA2)
    columns: tuple[Column, ...] = ()

    @property
    def has_status(self) -> bool:
        return "status" in self.fields.of


def fields(*rules: Rule, **of: Field) -> Fields:
    return Fields(of, rules)


def choices(kind: type[StrEnum], *only: StrEnum, old: tuple[str, ...] = ()) -> Text:
    """The values of one of the scheduler's enums, or some of them."""
    return Text(choices=tuple(str(one) for one in (only or kind)), old_choices=old)


AGE: Final = Column("Age", ".metadata.creationTimestamp", "Time since it was created", "date")

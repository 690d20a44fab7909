"""Decodes the bytes of a list or a watch into values; the only module that knows their form.

An object is passed to `read` as soon as it is parsed, and the rest of it is freed: a pod is 5 KB of
JSON, of which a reader of pods keeps a tenth.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from sys import intern
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")

LONGEST_LINE_BYTES: Final = 16 << 20
"""etcd's limit of an object is 1.5 MB by default and 8 MB in practice; JSON is somewhat larger."""
INITIAL_EVENTS_END: Final = "k8s.io/initial-events-end"


class BadAnswer(ValueError):
    """An answer that is not of an API server's form."""


@dataclass(frozen=True, slots=True)
class Item(Generic[T]):
    key: str
    """namespace/name, or the name of a cluster-wide object."""
    version: str
    """resourceVersion, which may only be compared for equality."""
    value: T


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    items: tuple[Item[T], ...]
    version: str
    more: str = ""
    """The token for the next page."""


@dataclass(frozen=True, slots=True)
class Seen(Generic[T]):
    """ADDED, MODIFIED or DELETED."""

    item: Item[T]
    deleted: bool = False


@dataclass(frozen=True, slots=True)
class Bookmark:
    version: str
    ends_initial: bool = False
    """True for the bookmark after the initial events of a streaming list."""


@dataclass(frozen=True, slots=True)
class StreamError:
    """A Status in place of an event; the stream ends after it."""

    code: int
    message: str


class Lines:
    """Splits pieces into whole lines; an incomplete line is never returned."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The lines completed by a piece. Raises BadAnswer for a line that is too long."""
        self._rest += data
        *whole, rest = self._rest.split(b"\n") if b"\n" in data else [self._rest]
        if len(rest) > LONGEST_LINE_BYTES:
            raise BadAnswer(f"a line of more than {LONGEST_LINE_BYTES} bytes")
        self._rest = bytearray(rest)
        return [bytes(line) for line in whole if line.strip()]

    def forget(self) -> None:
        self._rest.clear()


class Decoder(Generic[T]):
    """Decoder of JSON; `read` extracts a value from an object, and may raise ValueError."""

    def __init__(self, read: Callable[[Mapping[str, Any]], T]) -> None:
        self._read = read

    def page(self, body: bytes) -> Page[T]:
        """Raises BadAnswer."""
        document = _mapping(_json(body), "a list")
        head = _mapping(document.get("metadata"), "metadata of a list")
        items = document.get("items") or []
        if not isinstance(items, list):
            raise BadAnswer("items of a list are not a list")
        return Page(
            tuple(self._item(one) for one in items),
            _text(head.get("resourceVersion"), "resourceVersion of a list"),
            _text(head.get("continue") or "", "continue"),
        )

    def line(self, line: bytes) -> Seen[T] | Bookmark | StreamError:
        """Raises BadAnswer."""
        event = _mapping(_json(line), "a watch event")
        kind, value = event.get("type"), _mapping(event.get("object"), "object of a watch event")
        if kind in ("ADDED", "MODIFIED", "DELETED"):
            return Seen(self._item(value), kind == "DELETED")
        if kind == "BOOKMARK":
            head = _mapping(value.get("metadata"), "metadata of a bookmark")
            ends = _mapping(head.get("annotations") or {}, "annotations").get(INITIAL_EVENTS_END)
            version = _text(head.get("resourceVersion"), "resourceVersion of a bookmark")
            return Bookmark(version, ends == "true")
        if kind == "ERROR":
            code = value.get("code")
            return StreamError(
                code if isinstance(code, int) else 500, str(value.get("message") or "no message")
            )
        raise BadAnswer(f"a watch event of type {str(kind)[:40]!r}")

    def _item(self, value: Any) -> Item[T]:
        document = _mapping(value, "an object")
        head = _mapping(document.get("metadata"), "metadata")
        name = _text(head.get("name"), "name")
        namespace = _text(head.get("namespace") or "", "namespace")
        try:
            read = self._read(document)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise BadAnswer(f"{namespace}/{name}: {error}") from error
        return Item(
            intern(f"{namespace}/{name}" if namespace else name),
            _text(head.get("resourceVersion"), "resourceVersion"),
            read,
        )


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadAnswer(f"not JSON: {error}") from error


def _mapping(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise BadAnswer(f"{what}: not an object")
    return value


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise BadAnswer(f"{what}: not a text")
    return value

"""Seals on data that the controller hands to nodes and may read back one day.

A node keeps two things for a controller that loses its database: how far it has followed (cluster,
term and revision, the *fence*) and a row for each piece of its work. Both return when the node
connects, and both decide much: a fence beyond the controller's means that the database is an old
copy or that another controller took over, and a row may be adopted as running work. Neither is
trusted without its seal, an HMAC-SHA256 with a key that only the controller has, beside its
database. A seal is bound to one node.

A seal does not prove freshness: a node can keep an old one and present it again. `Nodes` adopts a
row only if it is newer than the copy of the database that lost it.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

MOST: Final = 1 << 60
"""Upper bound of terms, revisions and epochs, so that SQLite and int64 hold them."""
_FORM: Final = "s1"
_ENCODER: Final = json.JSONEncoder(separators=(",", ":"), sort_keys=True)


@dataclass(frozen=True, slots=True)
class Fence:
    """How far a node has followed, as recorded by the controller."""

    cluster_id: str
    node: str
    term: int
    revision: int


@dataclass(frozen=True, slots=True)
class Row:
    """A piece of work as the controller had it when it sent the decision."""

    fence: Fence
    body: Mapping[str, Any]


class Seals:
    def __init__(self, key: bytes = b"") -> None:
        """Without a key every seal is invalid."""
        self.key = key

    def fence(self, fence: Fence) -> str:
        return self._close("fence", _fields(fence))

    def row(self, fence: Fence, body: Mapping[str, Any]) -> str:
        return self._close("row", {**_fields(fence), "row": body})

    def open_fence(self, text: str) -> Fence | None:
        """The fence; None if its seal is invalid."""
        return _fence(self._open("fence", text))

    def open_row(self, text: str) -> Row | None:
        found = self._open("row", text)
        fence = _fence(found)
        body = found.get("row")
        return Row(fence, body) if fence is not None and isinstance(body, dict) else None

    def _close(self, kind: str, value: Mapping[str, Any]) -> str:
        text = _ENCODER.encode(value)
        return f"{_FORM}.{self._mac(kind, text)}.{text}"

    def _open(self, kind: str, sealed: str) -> dict[str, Any]:
        form, _, rest = sealed.partition(".")
        mac, _, text = rest.partition(".")
        if not self.key or form != _FORM:
            return {}
        if not hmac.compare_digest(mac.encode(), self._mac(kind, text).encode()):
            return {}
        found = json.loads(text)  # The seal is valid, so the text is the controller's own.
        return found if isinstance(found, dict) else {}

    def _mac(self, kind: str, text: str) -> str:
        message = f"{kind}\0{text}".encode(errors="surrogatepass")
        return hmac.digest(self.key, message, "sha256").hex()


def _fields(fence: Fence) -> dict[str, Any]:
    return {
        "cluster": fence.cluster_id,
        "node": fence.node,
        "term": fence.term,
        "revision": fence.revision,
    }


def _fence(found: Mapping[str, Any]) -> Fence | None:
    try:
        return Fence(found["cluster"], found["node"], found["term"], found["revision"])
    except KeyError:
        return None

"""What the controller hands to nodes and may have to believe again one day, under a seal.

A node keeps two things for a controller that forgets: how far it has followed (cluster, term and
revision, the *fence*) and a row for each piece of its work. Both come back when the node connects,
and both decide much: a fence beyond ours says that the database is an old copy or that another
controller took over, a row may be taken over as work that runs. So neither is believed without its
seal, an HMAC-SHA256 with a key that only the controller has, beside its database. A sealed thing
is bound to one node and says nothing about any other.

What a seal does not give: freshness. A node can keep an old one and show it again; `Nodes` takes a
row only if it is newer than the copy of the database that forgot it.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

MOST: Final = 1 << 60
"""Terms, revisions and epochs stay below, so that SQLite and every language's int64 hold them."""
_FORM: Final = "s1"
_ENCODER: Final = json.JSONEncoder(separators=(",", ":"), sort_keys=True)


@dataclass(frozen=True, slots=True)
class Fence:
    """How far a node has followed, in the controller's own words."""

    cluster_id: str
    node: str
    term: int
    revision: int


@dataclass(frozen=True, slots=True)
class Row:
    """One piece of work as the controller had it when it told the node."""

    fence: Fence
    body: Mapping[str, Any]


class Seals:
    def __init__(self, key: bytes = b"") -> None:
        """Without a key everything is sealed with nothing, and nothing is believed."""
        self.key = key

    def fence(self, fence: Fence) -> str:
        return self._close("fence", _fields(fence))

    def row(self, fence: Fence, body: Mapping[str, Any]) -> str:
        return self._close("row", {**_fields(fence), "row": body})

    def open_fence(self, text: str) -> Fence | None:
        """None: it is not ours."""
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
        found = json.loads(text)  # our own text: nobody else could have sealed it
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

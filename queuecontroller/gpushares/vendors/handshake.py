"""The scheduler's half of HAMi's handshake: whether a vendor's plugin is still there.

A plugin says `Reported …` again and again, a scheduler writes `Requesting_TIME` over it, and who
has not answered for a minute has its devices taken away (`Deleted_TIME`). HAMi asks all the time;
here it is asked only where the kubelet says that nothing can be allocated any more, which it says
when a plugin has gone. Times are those that we wrote ourselves, in UTC.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from queuecontroller.gpushares.vendors.asks import Document
from queuecontroller.gpushares.vendors.rules import Vendor, node_annotation

REQUESTING: Final = "Requesting"
DELETED: Final = "Deleted"
PATIENCE_S: Final = 60
"""HAMi's."""
SECOND_NS: Final = 1_000_000_000
_FORM: Final = "%Y-%m-%d %H:%M:%S"


def stamp(now_ns: int) -> str:
    return datetime.fromtimestamp(now_ns // SECOND_NS, UTC).strftime(_FORM)


def is_gone(vendor: Vendor, node: Document) -> bool:
    """Its plugin was asked in vain, and the kubelet has none of its devices."""
    return _silent(vendor, node) and _said(vendor, node).startswith(DELETED)


def word(vendor: Vendor, node: Document, now_ns: int) -> str:
    """What is to be written as the handshake now; empty: nothing."""
    if not _silent(vendor, node):
        return ""
    said = _said(vendor, node)
    if said.startswith(DELETED):
        return ""
    if not said.startswith(REQUESTING):
        return f"{REQUESTING}_{stamp(now_ns)}"
    asked_s = _seconds(said.partition("_")[2])
    now_s = now_ns // SECOND_NS
    if asked_s is None or asked_s > now_s + PATIENCE_S:  # somebody's, by another clock
        return f"{REQUESTING}_{stamp(now_ns)}"
    return f"{DELETED}_{stamp(now_ns)}" if now_s - asked_s >= PATIENCE_S else ""


def _said(vendor: Vendor, node: Document) -> str:
    return node_annotation(node, vendor.handshake)[:100]


def _silent(vendor: Vendor, node: Document) -> bool:
    """The kubelet knows its resource, and has none. It does not know one whose plugin has never
    come, as where a plugin registers by its annotation alone."""
    if not vendor.handshake or not node_annotation(node, vendor.register):
        return False
    found = (node.get("status") or {}).get("allocatable") or {}
    return vendor.count in found and str(found[vendor.count]) == "0"


def _seconds(text: str) -> int | None:
    try:
        return int(datetime.strptime(text, _FORM).replace(tzinfo=UTC).timestamp())
    except (ValueError, OverflowError):
        return None

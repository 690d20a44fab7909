"""The scheduler's half of HAMi's handshake, which detects whether a vendor's plugin is running.

A plugin writes `Reported …` repeatedly, a scheduler overwrites it with `Requesting_TIME`, and a
plugin that has not replied for a minute loses its devices (`Deleted_TIME`). HAMi requests all the
time; here a request is written only if the kubelet reports nothing as allocatable, which it does
when a plugin has gone. Timestamps are written by the controller, in UTC.
"""

from __future__ import annotations

from typing import Final

from queuecontroller.gpushares.vendors.asks import Document
from queuecontroller.gpushares.vendors.rules import Vendor, node_annotation
from sluicecommon.hami.handshake import DELETED, REQUESTING, SECOND_NS, deleted, requesting, seconds

PATIENCE_S: Final = 60
"""HAMi's timeout."""


def is_gone(vendor: Vendor, node: Document) -> bool:
    """True if the plugin did not reply in time and the kubelet has none of its devices."""
    return _silent(vendor, node) and _current(vendor, node).startswith(DELETED)


def word(vendor: Vendor, node: Document, now_ns: int) -> str:
    """The handshake to write now; empty if none."""
    if not _silent(vendor, node):
        return ""
    current = _current(vendor, node)
    if current.startswith(DELETED):
        return ""
    if not current.startswith(REQUESTING):
        return requesting(now_ns)
    asked_s = seconds(current)
    now_s = now_ns // SECOND_NS
    if asked_s is None or asked_s > now_s + PATIENCE_S:
        # Another scheduler wrote it by another clock.
        return requesting(now_ns)
    return deleted(now_ns) if now_s - asked_s >= PATIENCE_S else ""


def _current(vendor: Vendor, node: Document) -> str:
    return node_annotation(node, vendor.handshake)[:100]


def _silent(vendor: Vendor, node: Document) -> bool:
    """True if the kubelet knows the resource and has none allocatable. It does not know a resource
    whose plugin never started, such as that of a plugin that registers by annotation only."""
    if not vendor.handshake or not node_annotation(node, vendor.register):
        return False
    found = (node.get("status") or {}).get("allocatable") or {}
    return vendor.count in found and str(found[vendor.count]) == "0"

"""Handshake with a vendor's plugin: requested where the kubelet has none of its devices any more,
and given up after a minute."""

from __future__ import annotations

from typing import Any

import pytest

from queuecontroller.gpushares.vendors import ROWS, cards_of
from queuecontroller.gpushares.vendors.book import ForeignBook
from queuecontroller.gpushares.vendors.handshake import word
from sluicecommon.hami.handshake import stamp
from tests.queue.gpushares.vendors.plugins import NODE, PLUGINS

DCU = next(one for one in ROWS if one.word == "DCU")
PLUGIN = next(one for one in PLUGINS if one.word == "DCU")
NOW_NS = 1_795_000_000 * 10**9
SECOND = 10**9
KEY = DCU.handshake


def node(said: str = "", allocatable: str | None = "0") -> dict[str, Any]:
    made = PLUGIN.node()
    if said:
        made["metadata"]["annotations"] = {**made["metadata"]["annotations"], KEY: said}
    if allocatable is not None:
        made["status"]["allocatable"] = {DCU.count: allocatable}
    return made


@pytest.mark.parametrize(
    ("said", "allocatable", "written"),
    [
        ("Reported x", "8", ""),
        ("Reported x", None, ""),
        ("Reported x", "0", "Requesting"),
        ("", "0", "Requesting"),
        (f"Requesting_{stamp(NOW_NS - 59 * SECOND)}", "0", ""),
        (f"Requesting_{stamp(NOW_NS - 60 * SECOND)}", "0", "Deleted"),
        (f"Requesting_{stamp(NOW_NS + 9000 * SECOND)}", "0", "Requesting"),
        ("Requesting_nonsense", "0", "Requesting"),
        ("Deleted_x", "0", ""),
        ("Deleted_x", "8", ""),
    ],
    ids=[
        "it serves", "the kubelet was never told of it", "nothing can be allocated", "it never said a word", "it has time left", "it has not answered",
        "a time that is none of ours", "no time at all", "it is given up", "it is back",
    ],
)  # fmt: skip
def test_what_is_written(said: str, allocatable: str | None, written: str) -> None:
    found = word(DCU, node(said, allocatable), NOW_NS)
    assert found == (f"{written}_{stamp(NOW_NS)}" if written else "")


def test_who_is_given_up_has_no_devices_until_it_is_back() -> None:
    assert DCU.word in cards_of(ROWS, node("Reported x"), [])
    told: list[str] = []
    assert cards_of(ROWS, node("Deleted_x"), [], told) == {}
    assert KEY in told[0]
    assert DCU.word in cards_of(ROWS, node("Deleted_x", "8"), [])


def test_a_book_tells_what_to_write_on_which_node() -> None:
    book = ForeignBook(ROWS)
    book.node(NODE, book.pruned_node(node()))
    assert book.asked_nodes() == {NODE}
    assert book.handshakes(NODE, NOW_NS) == {KEY: f"Requesting_{stamp(NOW_NS)}"}
    assert book.handshakes("another", NOW_NS) == {}

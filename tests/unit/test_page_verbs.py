"""An action of the page is one entry of its backend's table: button, confirmation and what is done."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from nodeagent.adapters.web import page as node
from queuecontroller.server.page import backend as queue
from sluicecommon.page.verbs import Field, Verb, offered
from tests.kit.places import REPO

TABLES: list[dict[str, Verb[Any]]] = [dict(node.VERBS), dict(queue.VERBS)]
FRONT = REPO / "sluicecommon" / "page" / "front"


@pytest.mark.parametrize("table", TABLES, ids=["node", "queue"])
def test_the_browser_has_no_list_of_its_own(table: dict[str, Verb[Any]]) -> None:
    scripts = "".join(path.read_text() for path in FRONT.rglob("*.js"))
    for name, verb in table.items():
        assert re.fullmatch("[a-z-]+", name), "it is a part of a URL"
        assert f'"{name}"' not in scripts
        assert f"\n  {name}:" not in scripts
        assert verb.meaning not in scripts


def test_an_entry_is_offered_with_its_words() -> None:
    verbs = {
        "stop": Verb("Stop", "It stops.", None, frozenset({"A", "B"}), (Field("why", "Why"),)),
        "go": Verb("Go", "It goes.", None, frozenset({"B"}), held=True),
    }
    field = {"name": "why", "label": "Why", "mode": "text"}
    stop = {"title": "Stop", "meaning": "It stops.", "fields": [field], "held": None}
    assert offered(verbs, "A") == {"verbs": ["stop"], "words": {"stop": stop}}
    assert offered(verbs, "B")["verbs"] == ["stop", "go"]
    assert offered(verbs, "B")["words"]["go"]["held"] is True
    assert offered(verbs, "B", ["go", "other"])["verbs"] == ["go"]
    assert offered(verbs, "B", ())["verbs"] == offered(verbs, "C")["verbs"] == []


def test_the_queue_carries_out_what_the_entry_says() -> None:
    done: list[tuple[str, object, object]] = []

    class Book:
        def hold(self, what: object, drain: bool, now_ns: int) -> None:
            done.append(("hold", what, drain))

        def resume(self, what: object, now_ns: int) -> None:
            done.append(("resume", what, None))

    for verb in queue.VERBS.values():
        verb.does.do(Book(), ("ClusterQueue", "", "a"), 0)  # type: ignore[arg-type]
    a = ("ClusterQueue", "", "a")
    assert done == [("hold", a, False), ("resume", a, None), ("hold", a, True)]
    assert [one.does.policy for one in queue.VERBS.values()] == ["Hold", "None", "HoldAndDrain"]


def test_the_node_carries_out_what_the_entry_says() -> None:
    done: list[str] = []

    class Service:
        def resize_grant(self, peer: object, grant: str, ask: object) -> None:
            done.append("resize")

        def pause_grant(self, peer: object, grant: str) -> None:
            done.append("pause")

        async def resume_grant(self, peer: object, grant: str) -> None:
            done.append("resume-grant")

    for verb in node.VERBS.values():
        asyncio.run(verb.does(Service(), node.viewer_of(1), "g", {"cores": "30"}))  # type: ignore[arg-type]
    assert done == list(node.VERBS)

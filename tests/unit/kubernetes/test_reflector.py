"""The reflector against a server that lives in the test: whatever is cut, refused or forgotten on the way, what it
has reported is in the end what is there, and nothing is reported twice."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicecommon.kubernetes.decoding import BadAnswer, Decoder, Lines
from sluicecommon.kubernetes.reflector import (
    STREAM_TRIES,
    Change,
    Changed,
    Fetch,
    Pause,
    Reflector,
    Removed,
    Synced,
    Watch,
)

NAMES = ("a", "b", "c", "d", "e")


def reflector() -> Reflector[str]:
    return Reflector(Decoder(lambda document: str(document["spec"])))


@dataclass
class Server:
    """Objects, their history, and how much of it is remembered."""

    streaming: bool = True
    version: int = 10
    compacted: int = 0
    objects: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Version and spec by name."""
    history: list[tuple[int, str, str, str]] = field(default_factory=list)

    def put(self, name: str, spec: str) -> None:
        self.version += 1
        kind = "MODIFIED" if name in self.objects else "ADDED"
        self.objects[name] = (str(self.version), spec)
        self.history.append((self.version, kind, name, spec))

    def delete(self, name: str) -> None:
        if name in self.objects:
            self.version += 1
            _, spec = self.objects.pop(name)
            self.history.append((self.version, "DELETED", name, spec))

    def document(self, name: str, version: str, spec: str) -> dict[str, Any]:
        return {
            "metadata": {"namespace": "n", "name": name, "resourceVersion": version},
            "spec": spec,
        }

    def page(self, asked: dict[str, str]) -> bytes | int:
        if "continue" in asked and int(asked["continue"].partition("@")[2]) < self.compacted:
            return 410
        start = int(asked.get("continue", "0").partition("@")[0])
        names = sorted(self.objects)
        limit = 2 if "limit" in asked else len(names) + 1
        head = {"resourceVersion": str(self.version)}
        if start + limit < len(names):
            head["continue"] = f"{start + limit}@{self.version}"
        items = [self.document(n, *self.objects[n]) for n in names[start : start + limit]]
        return json.dumps({"metadata": head, "items": items}).encode()

    def stream(self, asked: dict[str, str]) -> bytes | int:
        """All that it would say now."""
        lines: list[dict[str, Any]] = []
        if asked.get("sendInitialEvents") == "true":
            if not self.streaming:
                return 422
            for name, (version, spec) in sorted(self.objects.items()):
                lines.append({"type": "ADDED", "object": self.document(name, version, spec)})
            ends = {"k8s.io/initial-events-end": "true"}
            head = {"resourceVersion": str(self.version), "annotations": ends}
            lines.append({"type": "BOOKMARK", "object": {"metadata": head}})
        elif int(asked["resourceVersion"]) < self.compacted:
            lines.append({"type": "ERROR", "object": {"code": 410, "message": "too old"}})
        else:
            for version, kind, name, spec in self.history:
                if version > int(asked["resourceVersion"]):
                    lines.append({"type": kind, "object": self.document(name, str(version), spec)})
        return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


class Consumer:
    """State that a user of the reflector has; raises AssertionError on an impossible change."""

    def __init__(self) -> None:
        self.known: dict[str, tuple[str, str]] = {}
        self.synced = 0

    def take(self, changes: list[Change[str]]) -> None:
        for change in changes:
            if isinstance(change, Changed):
                now = (change.item.version, change.item.value)
                assert self.known.get(change.item.key) != now, "told twice"
                self.known[change.item.key] = now
            elif isinstance(change, Removed):
                assert change.key in self.known, "removed what was never told"
                del self.known[change.key]
            else:
                assert isinstance(change, Synced)
                self.synced += 1


def turn(it: Reflector[str], server: Server, fault: str, at: int, size: int) -> list[Change[str]]:
    """One request, with what goes wrong in it."""
    wanted = it.next
    if isinstance(wanted, Pause):
        assert wanted.seconds > 0
        it.paused()
        return []
    if fault == "no answer":
        return it.failed("connection refused")
    if fault == "busy":
        return it.refused(429, "too many requests", 1.0)
    asked = dict(wanted.parameters)
    answer = server.page(asked) if isinstance(wanted, Fetch) else server.stream(asked)
    if isinstance(answer, int):
        return it.refused(answer, "no")
    if isinstance(wanted, Fetch):
        return it.page(answer[: at % (len(answer) + 1)] if fault == "cut" else answer)
    changes: list[Change[str]] = []
    it.opened()
    if fault == "cut":
        answer = answer[: at % (len(answer) + 1)]
    elif fault == "garbage":
        answer = answer[: at % (len(answer) + 1)] + b"}{\n"
    for start in range(0, len(answer), size):
        changes += it.piece(answer[start : start + size])
        if it.next is not wanted:
            return changes
    return changes + it.ended("broken" if fault == "cut" else "")


STEPS = st.one_of(
    st.tuples(st.just("put"), st.sampled_from(NAMES), st.text("xyz", max_size=3)),
    st.tuples(st.just("delete"), st.sampled_from(NAMES), st.just("")),
    st.tuples(st.just("compact"), st.just(""), st.just("")),
    st.tuples(
        st.sampled_from(["well", "cut", "garbage", "no answer", "busy"]),
        st.integers(0, 4000),
        st.integers(1, 700),
    ),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(STEPS, max_size=40), st.booleans())
def test_in_the_end_it_has_told_what_is_there(steps: list[Any], streaming: bool) -> None:
    server, it, consumer = Server(streaming), reflector(), Consumer()
    for what, first, second in steps:
        if what == "put":
            server.put(first, second)
        elif what == "delete":
            server.delete(first)
        elif what == "compact":
            server.compacted = server.version
            server.history.clear()
        else:
            consumer.take(turn(it, server, what, first, second))
    for _ in range(30):  # nothing goes wrong any more
        consumer.take(turn(it, server, "well", 0, 1 << 20))
    assert consumer.known == {f"n/{name}": now for name, now in server.objects.items()}
    assert it.synced
    assert consumer.synced >= 1
    assert it.trouble == ""
    assert len(it) == len(server.objects)


@given(st.binary(max_size=200), st.lists(st.integers(1, 40), max_size=20))
def test_lines_are_the_same_however_they_come(data: bytes, sizes: list[int]) -> None:
    lines, got, rest = Lines(), [], data
    for size in sizes:
        got += lines.feed(rest[:size])
        rest = rest[size:]
    got += lines.feed(rest + b"\n")
    assert got == [line for line in data.split(b"\n") if line.strip()]


def test_a_line_without_an_end_is_refused_and_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluicecommon.kubernetes.decoding.LONGEST_LINE_BYTES", 100)
    lines = Lines()
    lines.feed(b"x" * 100)
    with pytest.raises(BadAnswer):
        lines.feed(b"x")


def synced(streaming: bool = True) -> tuple[Reflector[str], Server]:
    server, it = Server(streaming), reflector()
    server.put("a", "1")
    for _ in range(4):
        if it.synced and isinstance(it.next, Watch):
            break
        turn(it, server, "well", 0, 1 << 20)
    assert it.synced
    return it, server


def test_a_watch_goes_on_from_the_last_bookmark() -> None:
    it, _ = synced()
    it.piece(b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"77"}}}\n')
    it.ended()
    assert isinstance(it.next, Watch)
    assert ("resourceVersion", "77") in it.next.parameters
    assert it.trouble == ""


def test_silence_is_trouble_and_asks_again_from_the_same_version() -> None:
    it, server = synced()
    it.ended("silent for 150 s")
    assert "silent" in it.trouble
    assert isinstance(it.next, Pause)
    it.paused()
    assert isinstance(it.next, Watch)
    assert ("resourceVersion", str(server.version)) in it.next.parameters


def test_who_may_not_watch_is_told_so_and_what_is_known_stands() -> None:
    it, _ = synced()
    it.ended()
    it.refused(403, "pods is forbidden")
    assert it.denied
    assert "forbidden" in it.trouble
    assert len(it) == 1


def test_a_kind_that_is_gone_takes_along_all_that_was_of_it_and_may_come_back() -> None:
    it, server = synced()
    it.ended("the definition went")
    it.paused()
    assert it.refused(404, "not found") == []
    assert it.missing
    assert len(it) == 1, (
        "an API server that starts answers so, too: another check has to find it out"
    )
    (gone,) = it.vanished()
    assert isinstance(gone, Removed)
    assert len(it) == 0
    it.paused()
    for _ in range(2):
        assert isinstance(it.next, Watch)
        told = turn(it, server, "well", 0, 1 << 20)
        if told:
            break
    assert any(isinstance(one, Changed) for one in told), "it is back, and told anew"
    assert not it.missing


@pytest.mark.parametrize("streaming", [True, False])
def test_a_request_that_was_given_up_is_followed_by_all_there_is(streaming: bool) -> None:
    it, server = synced(streaming)
    server.put("b", "2")
    turn(it, server, "well", 0, 1 << 20)
    it.piece(b'{"type":"ADD')  # it is given up in the middle of a line
    server.delete("a")
    it.restart()
    assert not it.synced
    consumer = Consumer()
    consumer.known["n/a"] = ("11", "1")
    for _ in range(4):
        consumer.take(turn(it, server, "well", 0, 1 << 20))
    assert it.synced
    assert consumer.synced == 1
    assert set(consumer.known) == {"n/b"}, "the one that stayed is told again, the other is gone"


def test_pauses_grow_and_a_server_that_names_its_own_is_heard() -> None:
    it = reflector()
    pauses = []
    for _ in range(8):
        it.failed("no route")
        assert isinstance(it.next, Pause)
        pauses.append(it.next.seconds)
        it.paused()
    assert pauses == [0.5, 1, 2, 4, 8, 16, 30, 30]
    it.refused(429, "slow down", 120.0)
    assert it.next == Pause(120.0)


def test_streaming_lists_that_never_end_give_way_to_pages() -> None:
    it = reflector()
    for _ in range(STREAM_TRIES):
        assert isinstance(it.next, Watch)
        it.ended()
        it.paused()
    assert isinstance(it.next, Fetch)


def test_a_token_for_the_next_page_that_is_too_old_starts_the_list_anew_from_etcd() -> None:
    server, it = Server(streaming=False), reflector()
    for name in NAMES:
        server.put(name, "1")
    it.refused(422, "no streaming")
    it.failed("lost")
    it.paused()
    it.refused(504, "too large resource version")
    it.paused()
    assert isinstance(it.next, Fetch)
    assert dict(it.next.parameters) == {"limit": "500"}
    it.page(server.page({"limit": "2"}))  # type: ignore[arg-type]
    assert isinstance(it.next, Fetch)
    assert "continue" in dict(it.next.parameters)
    it.refused(410, "expired")
    it.paused()
    assert isinstance(it.next, Fetch)
    assert dict(it.next.parameters) == {"limit": "500"}


@pytest.mark.parametrize(
    "line",
    [
        b"[]",
        b"{}",
        b'{"type":"ADDED"}',
        b'{"type":"ADDED","object":{"metadata":{"name":1,"resourceVersion":"1"}}}',
        b'{"type":"WHAT","object":{}}',
        b'{"type":"BOOKMARK","object":{"metadata":{}}}',
        b'{"type":"ADDED","object":{"metadata":{"name":"a","resourceVersion":"1"}}}',
        b"[" * 100_000,
    ],
)
def test_what_no_api_server_says_ends_the_watch_and_is_no_defect(line: bytes) -> None:
    it, _ = synced()
    it.piece(line + b"\n")
    assert isinstance(it.next, Pause)
    assert it.trouble

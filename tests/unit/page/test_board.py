"""A resumed connection ends with the same state as a new one, and no connection receives rows that
its user may not see."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicecommon.page.board import FRAME_DOCUMENTS, Board, Delta, Frames, Key, Sight

EVERYTHING = Sight(frozenset({"Node", "Queue"}), None)
KEYS: list[Key] = [
    ("Node", "", "a"),
    ("Queue", "", "b"),
    ("Job", "team-a", "x"),
    ("Job", "team-a", "y"),
    ("Job", "team-b", "x"),
]
SIGHTS = [
    EVERYTHING,
    Sight(frozenset({"Node"}), frozenset({"team-a"})),
    Sight(frozenset(), frozenset({"team-b"})),
    Sight(),
]
Known = dict[Key, dict[str, Any]]

steps = st.lists(
    st.tuples(
        st.sampled_from(KEYS),
        st.one_of(
            st.none(),
            st.dictionaries(st.sampled_from("pqr"), st.sampled_from([None, 0, 1, "one", [1, 2]])),
        ),
    ),
    max_size=30,
)


def told(known: Known, deltas: list[Delta]) -> Known:
    """State of a front end that applies these deltas."""
    known = {key: dict(fields) for key, fields in known.items()}
    for one in deltas:
        if one.fields is None:
            known.pop(one.key, None)
            continue
        now = {} if one.is_new else known[one.key]
        known[one.key] = {k: v for k, v in {**now, **one.fields}.items() if v is not None}
    return known


def whole(board: Board, sight: Sight) -> Known:
    return told({}, list(board.everything(sight)))


def play(board: Board, given_: list[tuple[Key, dict[str, Any] | None]]) -> None:
    for key, fields in given_:
        if fields is None:
            board.drop(key)
        else:
            board.put(key, fields)


@given(first=steps, second=steps, sight=st.sampled_from(SIGHTS))
def test_who_resumes_knows_what_who_begins_knows(first: Any, second: Any, sight: Sight) -> None:
    board = Board("i")
    play(board, first)
    known, revision = whole(board, sight), board.revision
    play(board, second)
    deltas = board.since(revision, sight)
    assert deltas is not None
    assert told(known, deltas) == whole(board, sight)
    assert all(sight.sees(one.key) for one in deltas)


@given(first=steps, second=steps)
def test_what_did_not_change_is_not_told(first: Any, second: Any) -> None:
    board = Board("i")
    play(board, first)
    before, revision = whole(board, EVERYTHING), board.revision
    play(board, second)
    after = whole(board, EVERYTHING)
    for one in board.since(revision, EVERYTHING) or []:
        if not one.is_new and one.fields is not None:
            # A field may have come and gone; one that was not changed is not there.
            touched = {n for k, f in second if k == one.key for n in {**before[k], **(f or {})}}
            assert one.fields.keys() <= touched | before[one.key].keys() | after[one.key].keys()
    board_again = board.since(board.revision, EVERYTHING)
    assert board_again == []


def test_a_change_of_one_field_is_that_field_alone() -> None:
    board = Board("i")
    board.put(KEYS[0], {"p": 1, "q": 2})
    known = board.revision
    assert board.put(KEYS[0], {"p": 1, "q": 3})
    assert not board.put(KEYS[0], {"p": 1, "q": 3})
    assert board.since(known, EVERYTHING) == [Delta(KEYS[0], {"q": 3})]


def test_nobody_is_told_of_what_it_may_not_see_nor_that_it_is_gone() -> None:
    board = Board("i")
    play(board, [(key, {"p": 1}) for key in KEYS])
    revision = board.revision
    play(board, [(key, None) for key in KEYS])
    seen = Sight(frozenset(), frozenset({"team-b"}))
    assert [one.key for one in board.since(revision, seen) or []] == [("Job", "team-b", "x")]
    assert board.since(revision, Sight()) == []
    assert Sight().is_blind
    assert not seen.is_blind


@pytest.mark.parametrize(
    "stamp", ["", "i", "i.", "j.1", "i.x", "i.-1", "i.²", ".1", "i." + "9" * 40]
)
def test_a_stamp_that_is_none_of_this_board_begins_anew(stamp: str) -> None:
    board = Board("i")
    board.put(KEYS[0], {"p": 1})
    known = board.read_stamp(stamp)
    assert known is None or board.since(known, EVERYTHING) is None
    assert board.read_stamp(board.stamp()) == board.revision


def test_what_went_too_long_ago_is_forgotten_and_who_missed_it_begins_anew() -> None:
    board = Board("i", most_gone=3)
    for number in range(6):
        board.put(("Node", "", str(number)), {})
    before = board.revision
    for number in range(6):
        board.drop(("Node", "", str(number)))
    assert board.since(before, EVERYTHING) is None
    assert len(board.since(before + 3, EVERYTHING) or []) == 3
    frames = list(board.frames(before, EVERYTHING)[1])
    assert b"event: reset" in frames[0]


def test_a_kind_has_its_bound_and_what_is_left_out_is_counted() -> None:
    board = Board("i", most_of_a_kind=2)
    for number in range(5):
        board.put(("Node", "", str(number)), {})
    assert board.count("Node") == 2
    assert board.left_out == {"Node": 3}
    board.drop(("Node", "", "0"))
    assert board.put(("Node", "", "9"), {})


def test_only_the_last_frame_of_many_says_that_everything_has_come() -> None:
    board = Board("i")
    for number in range(2 * FRAME_DOCUMENTS + 1):
        board.put(("Node", "", str(number)), {"p": "line\nbreak \ud800"})
    frames = list(board.frames(None, EVERYTHING)[1])
    assert len(frames) == 5
    stamped = [frame.startswith(b"id: ") for frame in frames]
    assert stamped == [False, False, False, True, True]
    for frame in frames:
        assert frame.endswith(b"\n\n")
        assert b"\n\n" not in frame[:-2]
        json.loads(frame.split(b"data: ")[1])


def test_viewers_who_know_the_same_are_sent_the_same_bytes() -> None:
    board = Board("i")
    frames = Frames(board)
    board.put(KEYS[0], {"p": 1})
    known, _ = frames(None, EVERYTHING)
    board.put(KEYS[0], {"p": 2})
    first, second = frames(known, EVERYTHING), frames(known, Sight(EVERYTHING.kinds, None))
    assert first is second
    assert frames(known, Sight()) != first
    assert frames.made_total == 3


def heard(known: Known, frames: list[bytes]) -> Known:
    """State of a front end after these events."""
    for frame in frames:
        name, body = frame.split(b"event: ")[1].split(b"\ndata: ")
        if name == b"reset":
            known = {}
        if name == b"delta":
            rows = json.loads(body)
            deltas = [Delta((r[0], r[1], r[2]), r[3], is_new=len(r) == 5) for r in rows]
            known = told(known, deltas)
    return known


@pytest.mark.parametrize("begins_anew", [True, False], ids=["anew", "resumed"])
def test_what_changes_while_a_slow_viewer_takes_many_frames_is_not_lost(begins_anew: bool) -> None:
    board = Board("i")
    for number in range(3 * FRAME_DOCUMENTS):
        board.put(("Node", "", str(number)), {"p": 1, "q": 1})
    known, start = ({}, None) if begins_anew else (whole(board, EVERYTHING), board.revision)
    for number in range(2 * FRAME_DOCUMENTS):
        board.put(("Node", "", str(number)), {"p": 2, "q": 1})
    board.drop(("Node", "", "5"))
    revision, frames = board.frames(start, EVERYTHING)
    assert not isinstance(frames, list), "one is made when it is asked for"
    taken = []
    for number, frame in enumerate(frames):
        taken.append(frame)
        board.put(("Node", "", "5"), {"p": 5})  # it comes back
        board.put(("Node", "", str(10 + number)), {"q": 3})
        board.drop(("Node", "", str(1500 + number)))
        board.put(("Node", "", f"new-{number}"), {})
    assert b"id: i." + str(revision).encode() in taken[-1], "as of when it began"
    known = heard(known, taken)
    known = heard(known, list(board.frames(revision, EVERYTHING)[1]))
    assert known == whole(board, EVERYTHING)

"""Annotations for scaling down: which are written, and whose are left alone."""

from __future__ import annotations

from queuecontroller.cluster.autoscaling.scale_down import (
    AUTOSCALERS,
    KEPT,
    MARK,
    POSSIBLE,
    changes,
)

OF_AUTOSCALERS = dict.fromkeys(AUTOSCALERS, "true")
AS_KEPT = {MARK: KEPT, **OF_AUTOSCALERS}


def test_a_node_is_kept_and_given_free_again() -> None:
    assert changes({}, KEPT) == AS_KEPT
    assert changes(AS_KEPT, KEPT) == {}
    assert changes(AS_KEPT, POSSIBLE) == {MARK: POSSIBLE, **dict.fromkeys(AUTOSCALERS)}
    assert changes(AS_KEPT, "") == dict.fromkeys((MARK, *AUTOSCALERS))
    assert changes({MARK: POSSIBLE}, POSSIBLE) == {}
    assert changes({MARK: POSSIBLE}, KEPT) == AS_KEPT
    assert changes({}, "") == {}


def test_what_another_writer_has_set_stays() -> None:
    theirs = {AUTOSCALERS[0]: "true"}
    for verdict in (KEPT, POSSIBLE, ""):
        assert changes(theirs, verdict) == {}
    assert changes({**theirs, MARK: POSSIBLE}, KEPT) == {MARK: None}

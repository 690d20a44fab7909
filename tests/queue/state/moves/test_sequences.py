"""The first random sequences of arrivals, ends, moves and kills; `tests.queue.state.moves.sequences` plays more of them."""

from __future__ import annotations

import pytest

from queuecontroller.state.nodes.moves import MoveLimits
from tests.kit.queue.sequences import Broken, forget_quota_once, play
from tests.queue.state.moves.sequences import Sequence

PLAYED = 8


def play_all() -> None:
    for seed in range(PLAYED):
        play(Sequence, seed)


def test_gpus_quota_and_cooldowns_are_kept_whatever_ends_moves_or_is_killed() -> None:
    made = [play(Sequence, seed) for seed in range(PLAYED)]
    assert sum(one.kills for one in made) > PLAYED
    assert sum(one.moves_made() for one in made) > PLAYED / 2


def test_a_cool_down_that_is_not_kept_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the laws might hold for want of moves."""
    monkeypatch.setattr(MoveLimits, "permit", lambda *_: True)
    with pytest.raises(Broken, match=r"was moved|of its owner also"):
        play_all()


def test_quota_that_is_not_returned_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_quota_once(monkeypatch)
    with pytest.raises(Broken, match=r"its workloads hold"):
        play_all()

"""The first random sequences of `tests.queue.cluster.podplacement.sequences`, which plays more of them."""

from __future__ import annotations

import pytest

from queuecontroller.state.nodes.moves import MoveLimits
from tests.kit.queue.sequences import Broken, forget_quota_once, play
from tests.queue.cluster.podplacement.sequences import Sequence

PLAYED = 8
MOST = 64
"""Sequences in which a fault of one law is seen at the latest."""


def play_all() -> None:
    for seed in range(MOST):
        play(Sequence, seed)


def test_gpus_quota_and_cooldowns_are_kept_whoever_leads() -> None:
    made = [play(Sequence, seed) for seed in range(PLAYED)]
    assert sum(one.kills for one in made) > PLAYED
    assert sum(one.moves_made() for one in made) > 0


def test_a_cool_down_that_is_not_kept_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the laws might hold for want of moves."""
    monkeypatch.setattr(MoveLimits, "permit", lambda *_: True)
    with pytest.raises(Broken, match="moved"):
        play_all()


def test_quota_that_is_not_returned_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_quota_once(monkeypatch)
    with pytest.raises(Broken, match="the stored Workloads hold"):
        play_all()

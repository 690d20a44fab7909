"""The first random sequences of arrivals, ends, moves and kills; `tests.queue.state.moves.sequences` plays more of them."""

from __future__ import annotations

import pytest

from queuecontroller.scheduler.model.flavor_resources import Usage
from queuecontroller.scheduler.quota.tree import QuotaNode
from queuecontroller.state.nodes.moves import MoveLimits
from tests.queue.state.moves.sequences import Broken, play

PLAYED = 8


def play_all() -> None:
    for seed in range(PLAYED):
        play(seed)


def test_gpus_quota_and_cooldowns_are_kept_whatever_ends_moves_or_is_killed() -> None:
    made = [play(seed) for seed in range(PLAYED)]
    assert sum(one.kills for one in made) > PLAYED
    assert sum(len(times) for one in made for times in one.world.moves.values()) > PLAYED / 2


def test_a_cool_down_that_is_not_kept_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the laws might hold for want of moves."""
    monkeypatch.setattr(MoveLimits, "permit", lambda *_: True)
    with pytest.raises(Broken, match=r"was moved|of its owner also"):
        play_all()


def test_quota_that_is_not_returned_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    remove = QuotaNode.remove_usage
    skipped = iter([False] * 20 + [True])

    def forgetful(node: QuotaNode, usage: Usage) -> None:
        if not next(skipped, False):
            remove(node, usage)

    monkeypatch.setattr(QuotaNode, "remove_usage", forgetful)
    with pytest.raises(Broken, match=r"its workloads hold"):
        play_all()

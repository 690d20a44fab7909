"""A network that works in one direction only, between a node and the controller in network namespaces of their own."""

from __future__ import annotations

import time

import pytest

from tests.node import until
from tests.pond import Pond
from tests.queue.service.test_partition import (
    CONTROLLER,
    NODE,
    Cable,
    NodeInSpace,
    _ip,
    both,
    cable,
)

__all__ = ["both", "cable"]
pytestmark = [pytest.mark.root, pytest.mark.faults]


@pytest.mark.parametrize("deaf", [0, 1], ids=["the controller's words", "the node's words"])
def test_g2_one_direction_alone_is_as_good_as_none(
    cable: Cable, both: tuple[Pond, NodeInSpace], deaf: int
) -> None:
    """Work goes on, nothing starts after the lease, and what waited starts once the other direction is back."""
    pond, node = both
    flags = ("--queue", "q", "--gpumem", "8Gi", "--cores", "30")
    first = node.run("first", "sleep", "600", flags=flags)
    until("first runs", lambda: node.grant("first"))
    far = NODE if deaf == 0 else CONTROLLER
    _ip("-n", cable.spaces[deaf], "route", "add", "blackhole", f"{far}/32")
    log = node.directory / "daemon.log"
    until("the lease is over", lambda: "the session is over" in log.read_text(), 60)
    late = node.run("late", "sleep", "600", flags=flags)
    time.sleep(2)  # not for logic: a wrong start would show itself within this time
    assert node.grant("late") is None
    assert node.grant("first") is not None
    assert first.process.poll() is None
    _ip("-n", cable.spaces[deaf], "route", "del", "blackhole", f"{far}/32")
    until("late runs, soon after it is back", lambda: node.grant("late"), 120)
    assert late.process.poll() is None
    assert [one["status"]["attempt"] for one in pond.workloads()] == [1, 1]

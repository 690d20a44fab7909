"""Lanes for `pytest -n`: tests of one lane run one after the other, in order; lanes run beside each other.

What measures GPU time is one lane, what loads programs into the kernel another. All else is a lane for each file: tests that
start daemons mostly wait, and so many of them share two processors; what only computes fills the rest at the lowest
priority, so that who waits is on time. Every daemon of the tests has its directory, ports, pins and cgroups to itself.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from functools import cache
from itertools import zip_longest

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.kit.places import REPO

COMPUTES = ("fuzz", "kubelet", "packages", "properties", "queue", "supply", "unit")
"""Folders of tests that need no other process to be on time …"""
COMPUTES_APART = ("simgpu/tests/", "tests/interpose/attach/test_region_layout.py")
"""… as do these …"""
WAITS = ("tests/queue/server/", "tests/queue/serving/")
"""… but for these."""
KERNEL = ("tests/ebpf/",)
MEASURES = re.compile(r"tests\.kit\.measure|kit import measure|\bmeasured=True")
"""Pattern in test files that measure GPU time, or that require an event within a time."""
LOWEST = 19
LONG = 20
OWN = os.getpriority(os.PRIO_PROCESS, 0)
"""Niceness that this process was started with."""


@cache
def lane(file: str) -> str:
    """Lane of a test file; its path is relative to the top of the repository."""
    if file.startswith(KERNEL):
        return "kernel"
    if not computes(file) and MEASURES.search((REPO / file).read_text()):
        return "measured"
    return file


def computes(file: str) -> bool:
    inside = file.startswith(COMPUTES_APART) or file.split("/")[1] in COMPUTES
    return inside and not file.startswith(WAITS)


def ordered(files: Iterable[str]) -> dict[str, int]:
    """The place of each lane, of the files of all tests: those of many files first, then who waits and who computes in
    turns, so that both are under way at any time; in each the one with most tests first."""
    tests: dict[str, int] = {}
    for file in files:
        tests[lane(file)] = tests.get(lane(file), 0) + 1
    by_size = sorted(tests, key=lambda one: -tests[one])
    shared = [one for one in by_size if not one.endswith(".py")]
    waiting = [one for one in by_size if one.endswith(".py") and not computes(one)]
    computing = [one for one in by_size if one.endswith(".py") and computes(one)]
    turns = [one for pair in zip_longest(waiting, computing) for one in pair if one is not None]
    return {one: place for place, one in enumerate(shared + turns)}


def file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def arrange(items: list[pytest.Item]) -> None:
    """In the order in which lanes begin; within a lane as they were."""
    places = ordered(file_of(item.nodeid) for item in items for _ in range(weight(item)))
    items.sort(key=lambda item: places[lane(file_of(item.nodeid))])


def weight(item: pytest.Item) -> int:
    """A test with a timeout of its own takes as long as one for each minute of it, and one of
    `make test-faults` only, such as the long form of another, as long as many."""
    timeout = item.get_closest_marker("timeout")
    minutes = int(timeout.args[0] // 60) if timeout is not None and timeout.args else 1
    return max(1, minutes, LONG if item.get_closest_marker("faults") else 1)


class Lanes(LoadScopeScheduling):  # type: ignore[misc]
    """Scheduling in the order of `arrange`, not by the number of tests."""

    def __init__(self, config: pytest.Config, log: object = None) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return lane(file_of(nodeid))


def give_way(nodeid: str) -> None:
    """To be called before each test: what it starts has its priority. Only root has the way back."""
    if os.geteuid() == 0:
        os.setpriority(os.PRIO_PROCESS, 0, LOWEST if computes(file_of(nodeid)) else OWN)

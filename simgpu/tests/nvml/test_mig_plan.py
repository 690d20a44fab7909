"""Geometries that the daemon's plan and the simulated driver allow: the same ones."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeagent.core.gpus.mig_geometry import GeometryError, plan, spans_of
from nodeagent.ports.mig import MigPlace, MigProfile, MigState
from tests.kit.places import SIM
from tests.kit.simulator.clients import Client, card

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="changing MIG is root's")

CARDS = ["h100-80gb", "a100-40gb", "h200-141gb"]
NVML = str(SIM / "libnvidia-ml.so.1")


@pytest.fixture(scope="module")
def node() -> Iterator[Client]:
    """A process that keeps the library open; the cards are in MIG mode, the A100 after a reset."""
    with (
        tempfile.TemporaryDirectory(prefix="sl-", dir="/tmp") as directory,
        card(Path(directory) / "sim", ",".join(CARDS)) as cards,
    ):
        yield cards.client()


@pytest.fixture(scope="module")
def states(node: Client) -> list[MigState]:
    found: list[MigState] = node.call(_states)
    return found


@pytest.fixture(scope="module")
def judge() -> Iterator[Client]:
    """A process that has not touched its node yet: each of its children makes one of its own."""
    with (
        tempfile.TemporaryDirectory(prefix="sl-", dir="/tmp") as directory,
        card(Path(directory) / "sim") as cards,
    ):
        yield cards.client()


GEOMETRIES = st.tuples(
    st.integers(0, len(CARDS) - 1), st.lists(st.integers(0, 6), min_size=1, max_size=7)
)


@settings(max_examples=150, deadline=None)
@given(GEOMETRIES)
def test_a_geometry_is_possible_for_both_or_for_neither(
    states: list[MigState], judge: Client, which: tuple[int, list[int]]
) -> None:
    state, wanted = _asked(states, which)
    by_us = True
    try:
        plan(state.profiles, wanted)
    except GeometryError:
        by_us = False
    assert judge.call(_can_be_cut, f"{CARDS[which[0]]}:{'+'.join(wanted)}") is by_us, wanted


@settings(max_examples=60, deadline=None)
@given(GEOMETRIES)
def test_what_is_planned_the_driver_does(
    node: Client, states: list[MigState], which: tuple[int, list[int]]
) -> None:
    state, wanted = _asked(states, which)
    if which[0] == 1:
        return  # the A100's mode waits for a reset
    error, found = node.call(_change, state.gpu, tuple(wanted))
    told = ""
    places: tuple[MigPlace, ...] = ()
    try:
        places = plan(state.profiles, wanted)
    except GeometryError as refused:
        told = str(refused)
    assert error == told
    assert sorted(found) == sorted((one.profile, one.span.start) for one in places)
    assert node.call(_change, state.gpu, ()) == ("", [])


def test_places_are_guessed_right_while_the_driver_does_not_say(
    node: Client, states: list[MigState]
) -> None:
    assert all(one.spans == () for state in states for one in state.profiles)
    for at in (0, 2):
        told: tuple[MigProfile, ...] = node.call(_profiles_with_mig_on, states[at].gpu)
        assert {one.name: one.spans for one in told} == spans_of(states[at].profiles)


def _asked(states: list[MigState], which: tuple[int, list[int]]) -> tuple[MigState, list[str]]:
    state = states[which[0]]
    return state, [state.profiles[number].name for number in which[1]]


_cutter: Any = None


def _open() -> Any:
    global _cutter
    from nodeagent.adapters.nvml.cutter import Cutter

    if _cutter is None:
        _cutter = Cutter(NVML)
    return _cutter


def _states(_cuda: Any) -> list[MigState]:
    return list(_open().states())


def _change(_cuda: Any, gpu: Any, wanted: Any) -> tuple[str, list[tuple[str, int]]]:
    outcome = _open().change(gpu, wanted)
    return outcome.error, [(one.profile, one.span.start) for one in outcome.after.instances]


def _profiles_with_mig_on(_cuda: Any, gpu: Any) -> Any:
    assert _open().change(gpu, ()).error == ""
    return next(one.profiles for one in _open().states() if one.gpu == gpu)


def _can_be_cut(_cuda: Any, gpus: str) -> bool:
    """True if the simulator makes such a node."""
    import ctypes
    import shutil

    directory = tempfile.mkdtemp(prefix="sl-", dir="/tmp")
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # it says what is wrong
        os.environ.update(SLUICE_SIM_DIR=directory, SLUICE_SIM_GPUS=gpus)
        os._exit(ctypes.CDLL(NVML).nvmlInit_v2())
    _pid, status = os.waitpid(child, 0)
    shutil.rmtree(directory)
    return status == 0

"""Checkpoints that one process makes of another: cuCheckpointProcess… of the simulated driver."""

from __future__ import annotations

import ctypes as c
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kit.simulator.clients import Card, Client, Cuda, card
from tests.kit.simulator.cuda import (
    GIB,
    INVALID_VALUE,
    MIB,
    NOT_SUPPORTED,
    OUT_OF_MEMORY,
    U64,
    Size,
    Ticket,
    get,
    observe,
    pattern,
    put,
    used,
)

RUNNING, LOCKED, CHECKPOINTED, FAILED = range(4)
SUCCESS, ILLEGAL_STATE, NOT_READY = 0, 401, 600
CONTEXT_MIB: Final = 520
"""Memory of a context on an H100, in MiB."""


class LockArgs(c.Structure):
    _fields_ = [("timeout_ms", c.c_uint), ("reserved0", c.c_uint), ("reserved1", U64 * 7)]


def state(cuda: Cuda, pid: int) -> int:
    found = c.c_int(-1)
    cuda.cuCheckpointProcessGetState(pid, c.byref(found))
    return found.value


def lock(cuda: Cuda, pid: int, timeout_ms: int = 10_000) -> int:
    return cuda.try_("cuCheckpointProcessLock", pid, c.byref(LockArgs(timeout_ms)))


def step(cuda: Cuda, pid: int, name: str) -> int:
    return lock(cuda, pid) if name == "Lock" else cuda.try_(f"cuCheckpointProcess{name}", pid, None)


def there(client: Client, pid: int, *names: str) -> list[int]:
    return [client.call(step, pid, name) for name in names]


kept: dict[str, int] = {}


def hold(cuda: Cuda, gib: int) -> bytes:
    cuda.context()
    kept["at"] = cuda.alloc(gib * GIB)
    data = pattern(9 * MIB)
    put(cuda, kept["at"], data)
    return data


def content(cuda: Cuda) -> bytes:
    return get(cuda, kept["at"], 9 * MIB)


def more(cuda: Cuda, gib: int) -> int:
    return cuda.try_("cuMemAlloc_v2", c.byref(U64()), Size(gib * GIB))


@pytest.fixture
def gpu(tmp_path: Path) -> Iterator[Card]:
    with card(tmp_path / "sim") as it:
        yield it


def test_a_checkpointed_process_leaves_the_card_and_comes_back_with_what_it_had(gpu: Card) -> None:
    target, other = gpu.client(), gpu.client()
    other.call(observe)
    empty = other.call(used)
    data = target.call(hold, 48)
    full = other.call(used)
    assert full - empty >= 48 * GIB
    assert other.call(more, 48) == OUT_OF_MEMORY
    assert there(other, target.pid, "Lock", "Checkpoint") == [SUCCESS, SUCCESS]
    assert other.call(state, target.pid) == CHECKPOINTED
    assert other.call(used) == empty
    assert other.call(more, 48) == SUCCESS, "its room is another's"
    asked = target.submit(content)
    assert there(other, target.pid, "Restore") == [OUT_OF_MEMORY]
    assert other.call(state, target.pid) == CHECKPOINTED
    assert other.call(used) == empty + 48 * GIB, "nothing of it was taken"
    other.kill()
    other.close()
    again = gpu.client()
    again.call(observe)
    assert there(again, target.pid, "Restore") == [SUCCESS]
    assert again.call(state, target.pid) == LOCKED
    assert not asked.done(), "a call waits until it is unlocked"
    assert there(again, target.pid, "Unlock") == [SUCCESS]
    assert asked.result(60) == data
    assert again.call(used) == full


def test_a_lock_waits_for_what_was_submitted_and_lets_go_after_its_timeout(gpu: Card) -> None:
    target, other = gpu.client(), gpu.client()
    other.call(observe)
    target.call(hold, 1)
    target.call(busy, 600_000_000)
    began = time.monotonic()
    assert other.call(lock, target.pid) == SUCCESS
    assert time.monotonic() - began > 0.1
    assert there(other, target.pid, "Unlock") == [SUCCESS]
    target.call(forever)
    assert other.call(lock, target.pid, 100) == NOT_READY
    assert other.call(state, target.pid) == RUNNING
    assert target.call(more, 1) == SUCCESS


def busy(cuda: Cuda, ns: int) -> None:
    cuda.launch(cuda.kernel(), ns=ns)


def forever(cuda: Cuda) -> None:
    cuda.launch(cuda.kernel("sim_busy_forever"))


def managed(cuda: Cuda) -> None:
    cuda.cuMemAllocManaged(c.byref(U64()), Size(MIB), 1)


def exported(cuda: Cuda) -> bytes:
    ticket = Ticket()
    cuda.cuIpcGetMemHandle(c.byref(ticket), U64(kept["at"]))
    return bytes(ticket)


@pytest.mark.parametrize("what", [managed, exported])
@pytest.mark.parametrize("breaks", [False, True])
def test_managed_and_shared_memory_is_not_supported(gpu: Card, what: object, breaks: bool) -> None:
    target, other = gpu.client(), gpu.client()
    other.call(observe)
    target.call(hold, 1)
    target.call(what)  # type: ignore[arg-type]
    before = other.call(used)
    if breaks:
        gpu.control("checkpoint_breaks=1")
        time.sleep(0.05)  # the file is looked at every 20 ms
    assert there(other, target.pid, "Lock", "Checkpoint") == [SUCCESS, NOT_SUPPORTED]
    assert other.call(state, target.pid) == (FAILED if breaks else LOCKED)
    assert other.call(used) == before
    assert there(other, target.pid, "Unlock") == [ILLEGAL_STATE if breaks else SUCCESS]


@pytest.mark.parametrize(
    "knob", [{"SLUICE_SIM_DRIVER_VERSION": "565.57.01"}, {"SLUICE_SIM_CUDA_VERSION": "12070"}]
)
def test_a_driver_before_570_has_none(gpu: Card, knob: dict[str, str]) -> None:
    target, other = gpu.client(), gpu.client(**knob)
    other.call(observe)
    target.call(hold, 1)
    assert (
        there(other, target.pid, "Lock", "Checkpoint", "Restore", "Unlock") == [NOT_SUPPORTED] * 4
    )


def test_whom_nobody_knows_is_an_invalid_value(gpu: Card) -> None:
    other = gpu.client()
    other.call(observe)
    for pid in (0, -1, 1, os.getpid()):
        assert there(other, pid, "Lock") == [INVALID_VALUE]


@pytest.mark.parametrize(
    "steps", [("Lock",), ("Lock", "Checkpoint"), ("Lock", "Checkpoint", "Restore")]
)
def test_who_dies_in_any_state_leaves_nothing(gpu: Card, steps: tuple[str, ...]) -> None:
    target, other = gpu.client(), gpu.client()
    other.call(observe)
    empty = other.call(used)
    target.call(hold, 8)
    assert there(other, target.pid, *steps) == [SUCCESS] * len(steps)
    pid = target.pid
    target.kill()
    target.close()
    assert other.call(used) == empty
    assert there(other, pid, "Restore") == [INVALID_VALUE]
    fresh = gpu.client()
    assert fresh.call(hold, 70), "a record that is used again begins anew"


def test_who_was_stopped_answers_when_it_goes_on(gpu: Card) -> None:
    target, other = gpu.client(), gpu.client()
    other.call(observe)
    target.call(hold, 1)
    os.kill(target.pid, signal.SIGSTOP)
    asked = other.submit(lock, target.pid)
    time.sleep(0.1)  # nothing is to happen
    assert not asked.done()
    os.kill(target.pid, signal.SIGCONT)
    assert asked.result(60) == SUCCESS
    assert there(other, target.pid, "Unlock") == [SUCCESS]


NEXT: Final = {
    (RUNNING, "Lock"): LOCKED,
    (LOCKED, "Checkpoint"): CHECKPOINTED,
    (CHECKPOINTED, "Restore"): LOCKED,
    (LOCKED, "Unlock"): RUNNING,
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Client, Client]]:
    with card(tmp_path_factory.mktemp("pair") / "sim") as it:
        target, other = it.client(), it.client()
        other.call(observe)
        target.call(hold, 4)
        yield target, other


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(names=st.lists(st.sampled_from(["Lock", "Checkpoint", "Restore", "Unlock"]), max_size=12))
def test_each_state_takes_what_leads_on_and_nothing_else(
    pair: tuple[Client, Client], names: list[str]
) -> None:
    target, other = pair
    while (at := other.call(state, target.pid)) != RUNNING:
        there(other, target.pid, "Restore" if at == CHECKPOINTED else "Unlock")
    full = other.call(used)
    for name in names:
        after = NEXT.get((at, name))
        assert there(other, target.pid, name) == [ILLEGAL_STATE if after is None else SUCCESS]
        at = at if after is None else after
        assert other.call(state, target.pid) == at
        gone = 4 * GIB + CONTEXT_MIB * MIB if at == CHECKPOINTED else 0
        assert full - other.call(used) == gone

"""The child that hangs or is killed, without a daemon around it."""

from __future__ import annotations

import os
import signal
from dataclasses import replace

import pytest

from nodeagent.ports.telemetry import DeviceOpened, KernelWatchUnavailable, WatchState
from tests.ebpf.live import OPTIONS, LiveWatch, Opener, cgroup, needs_ebpf, relative
from tests.kit.node import until

pytestmark = [needs_ebpf, pytest.mark.root]


@pytest.fixture
def watch() -> LiveWatch:
    made = LiveWatch(replace(OPTIONS, audit_interval_s=0.0, status_s=0.2), silent_s=3.0)
    made.start()
    return made


def child(watch: LiveWatch) -> int:
    pid = watch.watch.status().pid
    assert pid is not None
    return pid


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL], ids=["hung", "killed"])
def test_a_child_that_stops_is_replaced_and_told_all_again(watch: LiveWatch, number: int) -> None:
    with cgroup(f"stopped-{int(number)}") as place:
        opener = Opener("openat", place)
        try:
            watch.call(watch.watch.deny_opens(relative(place), True))
            first = child(watch)
            os.kill(first, number)
            until("its end is seen", lambda: watch.watch.status().restarts_total == 1)
            status = watch.watch.status()
            assert status.state in (WatchState.DOWN, WatchState.STARTING)
            assert not os.path.exists(f"/proc/{first}"), "a hung one is killed"
            if status.state is WatchState.DOWN:
                assert "eBPF child" in status.reason
                with pytest.raises(KernelWatchUnavailable):
                    watch.call(watch.watch.launches())
            assert opener.open() != 0, "refused while no daemon runs"
            watch.until_running()
            assert child(watch) != first
            until("it knows who is refused", lambda: relative(place) in watch.watch.denied())
            assert opener.open() != 0
            event = watch.wait(DeviceOpened, lambda event: event.actor.pid == opener.pid)
            assert event.denied
            watch.call(watch.watch.deny_opens(relative(place), False))
            assert opener.open() == 0
        finally:
            opener.close()
            watch.close()

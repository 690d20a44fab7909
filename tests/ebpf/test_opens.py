"""Opens of a GPU's device file: through any path in the kernel, from any cgroup; and refused
opens."""

from __future__ import annotations

import errno
import os
import platform
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from nodeagent.adapters.ebpf import host as ebpf_host
from nodeagent.adapters.ebpf.pins import BPFFS
from nodeagent.ports.telemetry import DeviceOpened, ProcessExec, ProcessExit
from tests.ebpf.live import (
    LOADERS,
    OPTIONS,
    STAND_IN,
    LiveWatch,
    Opener,
    cgroup,
    live,
    needs_ebpf,
    relative,
)
from tests.kit.measure import within
from tests.kit.node import until

pytestmark = [needs_ebpf, pytest.mark.root]


@pytest.fixture(scope="module", params=LOADERS)
def watch(request: pytest.FixtureRequest) -> Iterator[LiveWatch]:
    with live(replace(OPTIONS, loader=request.param)) as running:
        assert running.watch.status().loader == request.param
        yield running


def opened_by(pid: int, denied: bool = False):  # type: ignore[no-untyped-def]  # a predicate
    return lambda event: event.actor.pid == pid and event.denied is denied


@pytest.mark.parametrize("way", ["openat", "io_uring", "compat"])
def test_an_open_is_told_within_a_second_whatever_the_way(watch: LiveWatch, way: str) -> None:
    if way == "compat" and platform.machine() != "x86_64":
        pytest.skip("no 32-bit system calls here")

    def told() -> float:
        opener = Opener(way)
        try:
            result = opener.open()
            if way == "compat" and result == errno.ENOSYS:
                pytest.skip("this kernel takes no 32-bit system calls")
            assert result == 0
            event = watch.wait(DeviceOpened, opened_by(opener.pid))
        finally:
            opener.close()
        assert (event.major, event.minor, event.access) == (1, 5, "r")
        assert event.actor.command == "opener"
        assert event.actor.uid == os.getuid()
        return watch.delay_s(event)

    within(1.0, told)


def test_other_devices_are_nobodys_business(watch: LiveWatch) -> None:
    with open("/dev/null"), open("/dev/full"):
        opener = Opener("openat")
        try:
            opener.open()  # comes after them through the same ring
            watch.wait(DeviceOpened, opened_by(opener.pid))
        finally:
            opener.close()
    assert not watch.found(DeviceOpened, opened_by(os.getpid()))


def test_a_nested_cgroup_is_named(watch: LiveWatch) -> None:
    with cgroup("nested") as outer:
        inner = outer / "inner"
        inner.mkdir()
        opener = Opener("openat", inner)
        try:
            opener.open()
            event = watch.wait(DeviceOpened, opened_by(opener.pid))
        finally:
            opener.close()
        assert event.actor.cgroup == relative(inner)
        assert event.actor.cgroup_id == inner.stat().st_ino


@pytest.mark.parametrize("way", ["openat", "io_uring"])
def test_a_refused_cgroup_gets_no_gpu_and_nobody_else_notices(watch: LiveWatch, way: str) -> None:
    with cgroup(f"refused-{way}") as outer:
        inner = outer / "inner"
        inner.mkdir()
        inside, outside = Opener(way, inner), Opener(way)
        try:
            assert inside.open() == 0
            watch.call(watch.watch.deny_opens(relative(outer), True))
            assert watch.watch.denied() == {relative(outer)}
            assert inside.open() == errno.EPERM
            assert outside.open() == 0
            watch.wait(DeviceOpened, opened_by(inside.pid, denied=True))
            watch.call(watch.watch.deny_opens(relative(outer), False))
            assert inside.open() == 0
        finally:
            inside.close()
            outside.close()
    assert watch.watch.denied() == frozenset()


def test_a_cgroup_made_anew_at_the_path_of_a_refused_one_is_another(watch: LiveWatch) -> None:
    with cgroup("anew") as first:
        watch.call(watch.watch.deny_opens(relative(first), True))
        gone = first.stat().st_ino
    with cgroup("anew") as second:
        opener = Opener("openat", second)
        try:
            assert opener.open() == 0
            watch.call(watch.watch.deny_opens(relative(second), True))
            assert watch.watch.denied() == {relative(second)}
            assert opener.open() == errno.EPERM
            assert not (BPFFS / OPTIONS.pins / f"deny-{gone}").exists()
            watch.call(watch.watch.deny_opens(relative(second), False))
            assert opener.open() == 0
        finally:
            opener.close()
    assert watch.watch.denied() == frozenset()


@pytest.mark.parametrize("path", ["/", "", "/../..", "/a/../.."])
def test_the_whole_host_is_never_refused(watch: LiveWatch, path: str) -> None:
    with pytest.raises(OSError, match="whole host"):
        watch.call(watch.watch.deny_opens(path, True))


@pytest.mark.parametrize(
    ("loader", "next_loader"), [("prebuilt", "bcc"), ("bcc", "prebuilt"), ("auto", "auto")]
)
def test_a_refusal_outlives_the_child_and_is_known_to_the_next(
    loader: str, next_loader: str
) -> None:
    """Also where the next one was loaded by the other: as after an upgrade."""
    before, after = (replace(OPTIONS, loader=one) for one in (loader, next_loader))
    if lacks := [*ebpf_host.missing(loader), *ebpf_host.missing(next_loader)]:
        pytest.skip("; ".join(finding.what for finding in lacks))
    with cgroup("lasting") as place, live(before) as first:
        opener = Opener("openat", place)
        try:
            first.call(first.watch.deny_opens(relative(place), True))
            first.close()
            assert opener.open() == errno.EPERM
            with live(after) as second:  # as after a restart of the daemon
                assert second.watch.denied() == {relative(place)}
                assert opener.open() == errno.EPERM
                second.call(second.watch.deny_opens(relative(place), False))
                assert opener.open() == 0
        finally:
            opener.close()
            first.close = lambda: None  # type: ignore[method-assign]  # it is


def test_lives_of_watched_processes_are_told(watch: LiveWatch) -> None:
    process = subprocess.Popen(
        ["/bin/sh", "-c", "echo there; read go; exec sleep 1000"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "there\n"  # Popen answers before sh's own exec is told
    bystander = subprocess.Popen(["/bin/sh", "-c", "exec true"])
    watch.say(watch.watch.watch_processes, [process.pid])
    assert process.stdin is not None
    watch.call(watch.watch.launches())  # answered after the line above was taken in
    process.stdin.write("\n")
    process.stdin.close()
    became = watch.wait(ProcessExec, lambda event: event.actor.pid == process.pid)
    assert became.actor.command == "sleep"
    process.send_signal(signal.SIGKILL)
    ended = watch.wait(ProcessExit, lambda event: event.actor.pid == process.pid)
    assert ended.at_ns > became.at_ns
    process.wait()
    process.stdout.close()
    bystander.wait()
    assert not watch.found(ProcessExit, lambda event: event.actor.pid == bystander.pid)


def test_one_that_opens_all_the_time_is_told_once_a_second(watch: LiveWatch) -> None:
    opener = Opener("openat")
    try:
        for _ in range(2000):
            assert opener.open() == 0
        last = watch.wait(DeviceOpened, opened_by(opener.pid))
        told = watch.found(DeviceOpened, opened_by(opener.pid))
        until("its exit is told", lambda: opener.close() is None)
    finally:
        opener.close()
    assert last in told
    assert len(told) < 200


def test_making_a_device_node_is_not_opening_it(watch: LiveWatch, tmp_path: Path) -> None:
    """Container runtimes and systemd's PrivateDevices= make nodes for others."""
    maker = subprocess.Popen(["mknod", tmp_path / "node", "c", *STAND_IN.split(":")])
    assert maker.wait(30) == 0
    opener = Opener("openat")
    try:
        assert opener.open() == 0
        watch.wait(DeviceOpened, opened_by(opener.pid))  # later, and told in order
    finally:
        opener.close()
    assert not watch.found(DeviceOpened, opened_by(maker.pid))

"""The kernel's events about GPUs, from the real kernel where we may ask it for one."""

from __future__ import annotations

import asyncio
import json
import os
import select
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from nodeagent.adapters.host.children import python_child
from nodeagent.adapters.nvml import uevents, uevents_child
from nodeagent.adapters.nvml.uevents import Uevents
from nodeagent.adapters.nvml.uevents_child import gpu_change, parse
from nodeagent.ports.watch import DeviceChange
from nodeagent.shell.gpus.devices import QUIET_S, Devices

POKE = Path("/sys/class/net/lo/uevent")


def event(**pairs: str) -> bytes:
    head = f"{pairs['ACTION']}@{pairs['DEVPATH']}"
    return "\0".join([head, *(f"{k}={v}" for k, v in pairs.items()), ""]).encode()


@pytest.mark.parametrize(
    ("pairs", "change"),
    [
        (
            {"ACTION": "bind", "SUBSYSTEM": "pci", "DEVPATH": "/devices/x", "PCI_CLASS": "30200",
             "PCI_SLOT_NAME": "0000:10:00.0", "DRIVER": "nvidia"},
            DeviceChange("bind", "pci", "0000:10:00.0", "nvidia"),
        ),
        (
            {"ACTION": "remove", "SUBSYSTEM": "pci", "DEVPATH": "/devices/x", "PCI_CLASS": "30000",
             "PCI_SLOT_NAME": "0000:10:00.0"},
            DeviceChange("remove", "pci", "0000:10:00.0", ""),
        ),
        (
            {"ACTION": "remove", "SUBSYSTEM": "module", "DEVPATH": "/module/nvidia"},
            DeviceChange("remove", "module", "nvidia", ""),
        ),
        ({"ACTION": "add", "SUBSYSTEM": "pci", "DEVPATH": "/d", "PCI_CLASS": "20000"}, None),
        ({"ACTION": "add", "SUBSYSTEM": "module", "DEVPATH": "/module/loop"}, None),
        ({"ACTION": "add", "SUBSYSTEM": "block", "DEVPATH": "/d"}, None),
    ],
    ids=["bound", "pulled", "module gone", "a network card", "another module", "a disk"],
)  # fmt: skip
def test_only_gpus_and_their_driver_are_told(
    pairs: dict[str, str], change: DeviceChange | None
) -> None:
    assert gpu_change(parse(event(**pairs))) == change


@pytest.mark.parametrize("data", [b"", b"libudev\0rest", b"\xff\xfe@\0\xff=\xfe\0", b"a@b\0=\0"])
def test_garbage_is_no_change(data: bytes) -> None:
    assert gpu_change(parse(data)) is None


class Messages:
    """A socket that has these messages, or fails so, and then has none."""

    def __init__(self, *found: tuple[bytes, tuple[int, int]] | OSError) -> None:
        self._found = list(found)

    def recvfrom(self, _size: int) -> tuple[bytes, tuple[int, int]]:
        if not self._found:
            raise BlockingIOError
        first = self._found.pop(0)
        if isinstance(first, OSError):
            raise first
        return first


def test_the_kernel_itself_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    if not os.access(POKE, os.W_OK):
        pytest.skip(f"{POKE} cannot be written: no event of the kernel's to listen to")
    heard: list[str] = []

    def any_change(found: dict[str, str]) -> None:
        heard.append(found.get("INTERFACE", ""))

    monkeypatch.setattr(uevents_child, "gpu_change", any_change)
    with uevents_child.open_socket() as receiver:
        for _ in range(200):
            POKE.write_text("change")
            select.select([receiver], [], [], 0.05)
            assert list(uevents_child.received(receiver)) == []
            if "lo" in heard:
                return
    pytest.skip("the kernel tells no events in this network namespace")


def test_only_the_kernels_group_is_joined() -> None:
    with uevents_child.open_socket() as receiver:
        port, groups = receiver.getsockname()
        assert groups == uevents_child.KERNEL_GROUP
        assert port != uevents_child.KERNEL_PORT
        assert not receiver.getblocking()
        assert receiver.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) >= 1 << 20


def test_what_is_not_the_kernels_is_not_believed() -> None:
    forged = event(ACTION="remove", SUBSYSTEM="module", DEVPATH="/module/nvidia")
    (line,) = uevents_child.received(Messages((forged, (4242, 1)), (forged, (0, 1))))  # type: ignore[arg-type]
    assert line == {
        "change": {"action": "remove", "kind": "module", "name": "nvidia", "driver": ""}
    }


def test_events_that_the_kernel_dropped_are_a_line_too() -> None:
    dropped = OSError(105, "No buffer space available")
    (line,) = uevents_child.received(Messages(dropped))  # type: ignore[arg-type]
    assert "No buffer space" in line["lost"]


def test_the_child_listens_and_ends_with_the_daemon() -> None:
    with subprocess.Popen(
        python_child(uevents.CHILD), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert json.loads(child.stdout.readline()) == {"listening": True}
        child.stdin.close()
        assert child.wait(30) == 0


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uevents, "DELAY_S", 0.0)


def follow(
    monkeypatch: pytest.MonkeyPatch,
    script: str,
    changes: int,
    sysfs: Path = uevents.SYSFS,
    meanwhile: Callable[[], object] = lambda: None,
) -> tuple[Uevents, list[str]]:
    """An endpoint with this script as its child, until it has reported so many changes (0: until it
    has given up), and the reported actions. `meanwhile` happens between its making and its start."""
    monkeypatch.setattr(uevents, "python_child", lambda _module: [sys.executable, "-c", script])
    monkeypatch.setattr(uevents, "FIRST_PAUSE_S", 0.01)
    reported: list[str] = []

    async def run() -> Uevents:
        listener = Uevents(lambda change: reported.append(change.action), sysfs)
        meanwhile()
        async with asyncio.timeout(60):
            await listener.start()
            assert listener._supervisor is not None
            while len(reported) < changes or (not changes and not listener._supervisor.done()):
                await asyncio.sleep(0.01)
            await listener.close()
        return listener

    return asyncio.run(run()), reported


LISTENS = """
import sys
print('{"listening": true}')
print('{"change": {"action": "bind", "kind": "pci", "name": "0000:10:00.0", "driver": "nvidia"}}')
sys.stdout.flush()
"""


def test_lost_events_mean_that_anything_may_have_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    script = LISTENS + 'print(\'{"lost": "No buffer space available"}\', flush=True); input()'
    listener, reported = follow(monkeypatch, script, 2)
    assert reported == ["bind", "lost"]
    assert listener.lost_total == 1


@pytest.mark.parametrize("end", ["", "print('not JSON', flush=True); input()"])
def test_a_child_that_ends_is_replaced_and_what_it_missed_counts_as_lost(
    monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    listener, reported = follow(monkeypatch, LISTENS + end, 3)
    assert reported == ["bind", "lost", "bind"]
    assert listener.lost_total == 1


def a_gpu(sysfs: Path, driver: str = "nvidia") -> Path:
    """A GPU on the PCI bus, bound to the driver."""
    place = sysfs / "bus" / "pci" / "devices" / "0000:10:00.0"
    place.mkdir(parents=True)
    (place / "class").write_text("0x030200\n")
    bound(place, driver)
    return place


def bound(place: Path, driver: str) -> None:
    drivers = place.parents[1] / "drivers" / driver
    drivers.mkdir(parents=True, exist_ok=True)
    (place / "driver").symlink_to(drivers)


def rebound(place: Path) -> None:
    (place / "driver").unlink()
    bound(place, "vfio-pci")


def reloaded(sysfs: Path) -> None:
    module = sysfs / "module" / "nvidia"
    (sysfs / "kept").mkdir()  # so that the new directory cannot have the old one's inode
    module.rename(sysfs / "kept" / "nvidia")
    module.mkdir()


@pytest.mark.parametrize(
    "change",
    [
        lambda sysfs, place: shutil.rmtree(place),
        lambda sysfs, place: place.rename(place.with_name("0000:11:00.0")),
        lambda sysfs, place: rebound(place),
        lambda sysfs, place: (place / "driver").unlink(),
        lambda sysfs, place: reloaded(sysfs),
        lambda sysfs, place: (sysfs / "module" / "nvidia_uvm").mkdir(),
    ],
    ids=["pulled", "moved", "bound elsewhere", "unbound", "module reloaded", "module loaded"],
)
def test_what_changed_before_the_child_listens_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, change: Callable[[Path, Path], object]
) -> None:
    place = a_gpu(tmp_path)
    (tmp_path / "module" / "nvidia").mkdir(parents=True)
    script = LISTENS + "input()"
    listener, reported = follow(monkeypatch, script, 2, tmp_path, lambda: change(tmp_path, place))
    assert reported == ["lost", "bind"]
    assert listener.lost_total == 1


def test_what_is_no_gpu_may_change_before_the_child_listens(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    card = a_gpu(tmp_path).with_name("0000:20:00.0")
    card.mkdir()
    (card / "class").write_text("0x020000\n")
    listener, reported = follow(
        monkeypatch, LISTENS + "input()", 1, tmp_path, lambda: shutil.rmtree(card)
    )
    assert reported == ["bind"]
    assert listener.lost_total == 0


def test_a_daemon_that_has_just_started_has_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uevents, "DELAY_S", 60.0)

    async def run() -> None:
        listener = Uevents(lambda change: None)
        await listener.start()
        await asyncio.sleep(0.05)
        assert not [one for one in psutil.Process().children() if uevents.CHILD in one.cmdline()]
        await listener.close()

    asyncio.run(run())


def test_without_netlink_there_is_no_news_and_no_failure(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _, reported = follow(
        monkeypatch, 'print(\'{"failed": "Operation not permitted"}\', flush=True)', 0
    )
    assert reported == []
    assert "cannot listen for uevents: Operation not permitted" in caplog.text


def test_a_daemon_that_ends_at_once_leaves_no_child() -> None:
    async def run() -> None:
        listener = Uevents(lambda change: None)
        await listener.start()
        await asyncio.sleep(0.01)
        await listener.close()

    asyncio.run(run())
    assert not [one for one in psutil.Process().children() if uevents.CHILD in one.cmdline()]


def test_many_changes_are_one_refresh_once_it_is_quiet() -> None:
    told: list[str] = []
    refreshed: list[float] = []

    class Told:
        def record(self, kind: str, level: str, text: str) -> bool:
            told.append(text)
            return True

    async def run() -> None:
        loop = asyncio.get_running_loop()
        devices = Devices(Told(), lambda: refreshed.append(loop.time()))  # type: ignore[arg-type]
        for _ in range(5):
            devices.changed(DeviceChange("bind", "pci", "0000:10:00.0", "nvidia"))
            last_s = loop.time()
            await asyncio.sleep(0)
        async with asyncio.timeout(60):
            while not refreshed:
                await asyncio.sleep(0.05)
        await asyncio.sleep(0.2)
        assert len(refreshed) == 1
        assert refreshed[0] - last_s >= QUIET_S * 0.9

    asyncio.run(run())
    assert told == ["bind pci 0000:10:00.0, driver nvidia"] * 5

"""The kernel's events about GPUs, from the real kernel where we may ask it for one."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

from nodeagent.adapters.nvml import uevents
from nodeagent.adapters.nvml.uevents import Uevents, gpu_change, parse
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


def test_the_kernel_itself_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    if not os.access(POKE, os.W_OK):
        pytest.skip(f"{POKE} cannot be written: no event of the kernel's to listen to")
    heard: list[str] = []

    def any_change(found: dict[str, str]) -> None:
        heard.append(found.get("INTERFACE", ""))

    monkeypatch.setattr(uevents, "gpu_change", any_change)

    async def listen() -> None:
        listener = Uevents(lambda change: None)
        await listener.start()
        try:
            async with asyncio.timeout(10):
                while "lo" not in heard:
                    POKE.write_text("change")
                    await asyncio.sleep(0.05)
        except TimeoutError:
            pytest.skip("the kernel tells no events in this network namespace")
        finally:
            await listener.close()

    asyncio.run(listen())
    assert "lo" in heard


def test_what_is_not_the_kernels_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[DeviceChange] = []
    forged = event(ACTION="remove", SUBSYSTEM="module", DEVPATH="/module/nvidia")

    class Ears:
        def __init__(self) -> None:
            self.messages = [(forged, (4242, 1)), (forged, (0, 1))]

        def recvfrom(self, _size: int) -> tuple[bytes, tuple[int, int]]:
            if not self.messages:
                raise BlockingIOError
            return self.messages.pop(0)

    listener = Uevents(told.append)
    monkeypatch.setattr(listener, "_socket", Ears())
    listener._readable()
    assert told == [DeviceChange("remove", "module", "nvidia", "")]


def test_lost_events_mean_that_anything_may_have_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[DeviceChange] = []
    answers: list[OSError] = [OSError(105, "No buffer space available"), BlockingIOError()]

    class Full:
        def recvfrom(self, _size: int) -> tuple[bytes, tuple[int, int]]:
            raise answers.pop(0)

    listener = Uevents(told.append)
    monkeypatch.setattr(listener, "_socket", Full())
    listener._readable()
    assert [change.action for change in told] == ["lost"]
    assert listener.lost_total == 1


def test_without_netlink_there_is_no_news_and_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_arguments: object) -> socket.socket:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(socket, "socket", refused)

    async def run() -> None:
        listener = Uevents(lambda change: None)
        await listener.start()
        await listener.close()

    coroutine = run()
    with pytest.raises(StopIteration):  # runs through without a loop: it waits for nothing
        coroutine.send(None)


def test_many_changes_are_one_refresh_once_it_is_quiet() -> None:
    told: list[str] = []
    refreshed: list[float] = []

    class Told:
        def tell(self, kind: str, level: str, text: str) -> bool:
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

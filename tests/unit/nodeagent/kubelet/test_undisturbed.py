"""No List of PodResources is sent while the kubelet waits for an answer to Allocate: it would give the reserved device to the next
pod, too, as it did once in an upgrade under a stream of pods (UpdateAllocatedDevices of its device manager, 1.36.3)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from nodeagent.ports.kubelet import Checkpoint, Listing
from nodeagent.shell.pods.deviceplugin import undisturbed as module
from nodeagent.shell.pods.deviceplugin.undisturbed import UndisturbedRecords


class DeviceManager:
    """The kubelet's, for one pod after the other: what it counts as used, and what a List does to that."""

    def __init__(self, devices: Sequence[str]) -> None:
        self._devices = devices
        self._used: set[str] = set()
        self._stored: dict[str, str] = {}
        self.ended: set[str] = set()
        """Pods that have ended and are not removed yet."""

    def checkpoint(self) -> Checkpoint:
        raise NotImplementedError

    async def listings(self) -> list[Listing]:
        self._remove_ended()
        return []

    async def listings_of(self, namespace: str, name: str) -> list[Listing]:
        raise NotImplementedError

    def _remove_ended(self) -> None:
        if gone := self.ended & self._stored.keys():
            self._stored = {pod: one for pod, one in self._stored.items() if pod not in gone}
            self._used = set(self._stored.values())

    async def admit(self, pod: str, records: UndisturbedRecords, answer_s: float) -> str:
        self._remove_ended()
        device = next(one for one in self._devices if one not in self._used)
        self._used.add(device)
        with records.answering():
            await asyncio.sleep(answer_s)
        await asyncio.sleep(0)  # the answer is on its way
        self._stored[pod] = device
        return device


def test_a_list_while_a_device_is_reserved_gives_it_to_nobody_else() -> None:
    async def play() -> None:
        kubelet = DeviceManager("abc")
        records = UndisturbedRecords(kubelet)
        assert await kubelet.admit("first", records, 0) == "a"
        await records.listings()
        second = asyncio.create_task(kubelet.admit("second", records, 0.1))
        await asyncio.sleep(0)
        kubelet.ended.add("first")
        listed = asyncio.create_task(records.listings())
        given = await second
        assert not listed.done()
        later = [await kubelet.admit(one, records, 0) for one in ("third", "fourth")]
        assert sorted([given, *later]) == ["a", "b", "c"]
        await listed

    asyncio.run(play())


def test_a_list_is_delayed_for_a_time_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST_S", 0.05)

    async def play() -> None:
        records = UndisturbedRecords(DeviceManager("a"))
        with records.answering():
            assert await records.listings() == []

    asyncio.run(play())

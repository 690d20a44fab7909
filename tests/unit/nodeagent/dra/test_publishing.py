"""Counters that an API server does not keep are noticed, and a slice that had devices before is not taken for that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest

from nodeagent.shell.pods.dra.inventory import Made
from nodeagent.shell.pods.dra.publisher import Publisher
from tests.kit.clock import ManualClock

COUNTERS = {"name": "gpu-0", "counters": {"memory-slice-0": {"value": "1"}}}


class Store:
    """Fake store of ResourceSlices; `keeps`: fields that it knows."""

    node_uid, synced = "", True

    def __init__(self, keeps: frozenset[str]) -> None:
        self.keeps = keeps
        self.slices: dict[str, dict[str, Any]] = {}
        self.version = 0

    def documents(self) -> Mapping[str, Mapping[str, Any]]:
        return self.slices

    def on_change(self, call: Callable[[], None]) -> None:
        return None

    async def put(self, name: str, version: str, document: Mapping[str, Any]) -> str:
        self.version += 1
        spec = {key: value for key, value in document["spec"].items() if key in self.keeps}
        head = {"name": name, "resourceVersion": str(self.version), "uid": name}
        self.slices[name] = {"metadata": head, "spec": spec}
        return str(self.version)

    async def delete(self, name: str, uid: str) -> None:
        del self.slices[name]


class Inventory:
    def __init__(self) -> None:
        self.countless = False
        self.cut = False

    def published(self) -> Made:
        counters = [COUNTERS] if self.cut and not self.countless else []
        return Made([{"name": f"gpu-0{'-1g' if counters else ''}"}], cast(Any, counters))


@pytest.mark.parametrize("keeps", [True, False])
def test_a_card_is_put_into_mig_mode_while_its_slices_are_there(keeps: bool) -> None:
    fields = {"driver", "nodeName", "pool", "devices"} | ({"sharedCounters"} if keeps else set())
    store, inventory = Store(frozenset(fields)), Inventory()
    publisher = Publisher(
        "n", cast(Any, inventory), store, lambda: True, ManualClock(), pytest.fail
    )

    async def play() -> None:
        await publisher._round()
        inventory.cut = True
        for _ in range(3):
            await publisher._round()

    asyncio.run(play())
    assert inventory.countless is not keeps
    assert any("sharedCounters" in one["spec"] for one in store.slices.values()) is keeps
    names = [d["name"] for one in store.slices.values() for d in one["spec"].get("devices", [])]
    assert names == (["gpu-0-1g"] if keeps else ["gpu-0"])

"""Claims as the kubelet asks for them: a real daemon with 8 simulated GPUs, an API server in memory, calls over the driver's own
socket. What the runtime is given to see a file is not ours and is taken off."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from nodeagent.core.kubelet.cdi import settles_s
from tests.bench.entries import Entry, entry, quantile
from tests.bench.kubelet import cpu_s, install
from tests.kit.apiserver import ApiServer
from tests.kit.daemon.claims import CLAIMS, SLICES, Asker, claim, kubeconfig, settings
from tests.kit.node import Node, running, until
from tests.kit.workplace import workplace

GPUS, LIVING = 8, 40
AT_ONCE, ROUNDS = 8, 25
"""Claims of one call, as of a pod with as many, and calls."""


def directory_bytes(directory: Path) -> int:
    return sum(one.stat().st_size for one in directory.glob("*.json"))


@dataclass
class Measured:
    """In s, without what the runtime needs."""

    prepared: list[float] = field(default_factory=list)
    given_back: list[float] = field(default_factory=list)
    together: list[float] = field(default_factory=list)
    """A call with several claims."""
    republished: list[float] = field(default_factory=list)
    """Time from a GPU's error, as the driver reports it, to its taint at the API server."""
    cpu: float = 0.0
    """The daemon's own time for a claim prepared and given back."""


async def churn(directory: Path, api: ApiServer, count: int, daemon: int) -> Measured:
    await asyncio.to_thread(until, "the slices are there", lambda: bool(slices(api)))
    devices = [one["name"] for each in slices(api) for one in each["spec"]["devices"]]
    assert len(devices) == GPUS
    (socket,) = (directory / "kubelet/plugins/sluice.dev").glob("dra-*.sock")
    found = Measured()
    async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
        asker = Asker(channel)
        began_cpu_s = cpu_s(daemon)
        for number in range(count + LIVING):
            if number < count:
                api.put(CLAIMS, claim(number, devices[number % GPUS]))
                began_s = time.monotonic()
                assert await asker.call("NodePrepareResources", number) == ""
                waited_s = settles_s(directory_bytes(directory / "cdi"))
                found.prepared.append(max(0.0, time.monotonic() - began_s - waited_s))
            if number >= LIVING:
                began_s = time.monotonic()
                assert await asker.call("NodeUnprepareResources", number - LIVING) == ""
                found.given_back.append(time.monotonic() - began_s)
        found.cpu = (cpu_s(daemon) - began_cpu_s) / count
        for first in range(count, count + ROUNDS * AT_ONCE, AT_ONCE):
            numbers = range(first, first + AT_ONCE)
            for number in numbers:
                api.put(CLAIMS, claim(number, devices[number % GPUS]))
            began_s = time.monotonic()
            assert await asker.call_all("NodePrepareResources", numbers) == [""] * AT_ONCE
            waited_s = settles_s(directory_bytes(directory / "cdi"))
            found.together.append(max(0.0, time.monotonic() - began_s - waited_s))
            assert await asker.call_all("NodeUnprepareResources", numbers) == [""] * AT_ONCE
    return found


def slices(api: ApiServer) -> list[dict[str, Any]]:
    return [one for (where, _), one in api.objects.items() if where == SLICES]


async def falls_ill(node: Node, api: ApiServer, gpu: int) -> float:
    """XID 79, by which each GPU is lost until it was reset."""

    def ill() -> int:
        devices = [one for each in slices(api) for one in each["spec"]["devices"]]
        return sum(bool(one.get("taints")) for one in devices)

    before, began_s = ill(), time.monotonic()
    (node.directory / "gpu" / "control").write_text(f"xid=79@{gpu}\n")
    while ill() == before:
        assert time.monotonic() - began_s < 30, "its slice was not written again"
        await asyncio.sleep(0.002)
    return time.monotonic() - began_s


async def measured(directory: Path, count: int) -> Measured:
    api = ApiServer()
    await api.start()
    (directory / "kubeconfig").write_text(json.dumps(kubeconfig(api.url)))

    def up() -> Any:
        place = running(directory, gpus=f"{GPUS}xh100-80gb", settings=settings(directory))
        node: Node = place.__enter__()
        return place, node

    try:
        place, node = await asyncio.to_thread(up)
        try:
            await asyncio.to_thread(install, node, directory)
            assert node.daemon is not None
            found = await churn(directory, api, count, node.daemon.pid)
            for gpu in range(GPUS):
                found.republished.append(await falls_ill(node, api, gpu))
            return found
        finally:
            await asyncio.to_thread(place.__exit__, None, None, None)
    finally:
        await api.close()


def run(quick: bool) -> list[Entry]:
    with workplace() as directory:
        (directory / "kubelet").mkdir()
        found = asyncio.run(measured(directory, 200 if quick else 1000))
    ms, back, together = (
        [1000 * one for one in each] for each in (found.prepared, found.given_back, found.together)
    )
    return [
        entry("dra_prepare_p99_ms", "ms", ms, value=quantile(ms, 0.99), target="<= 20"),
        entry("dra_unprepare_p99_ms", "ms", back, value=quantile(back, 0.99)),
        entry("dra_prepare_8_at_once_p99_ms", "ms", together, value=quantile(together, 0.99)),
        entry("dra_claim_cpu_ms", "ms", [1000 * found.cpu]),
        entry(
            "dra_republished_s",
            "s",
            found.republished,
            value=max(found.republished),
            target="<= 1: a GPU's error to its taint in the slice of 8",
        ),
    ]

"""Claims as the kubelet asks for them: a real daemon with 8 simulated GPUs, an API server in memory, calls over the driver's own
socket. What the runtime is given to see a file is not ours and is taken off."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import grpc

from nodeagent import native
from nodeagent.adapters.dra.wire import DraWire, service
from nodeagent.core.kubelet.cdi import settles_s
from tests.bench.entries import Entry, entry, quantile
from tests.bench.kubelet import install
from tests.kit.apiserver import ApiServer
from tests.kit.node import Node, running, until
from tests.kit.workplace import workplace

GPUS, LIVING = 8, 40
CLAIMS = "/apis/resource.k8s.io/v1/resourceclaims"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"


def settings(directory: Path) -> str:
    return (
        f'[kubelet]\nenabled = true\ndoor = "dra"\ndirectory = "{directory}/kubelet"\n'
        f'cdi_dir = "{directory}/cdi"\nkubeconfig = "{directory}/kubeconfig"\ndra_status_s = 0\n'
        '[queue]\nnode_name = "bench"\n'
    )


def kubeconfig(server: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }


def claim(number: int, device: str) -> dict[str, Any]:
    consumed = {"memory": "512Mi", "cores": "1", "slots": "1"}
    result = {"request": "gpu", "driver": "sluice.dev", "pool": "bench", "device": device, "shareID": str(number), "consumedCapacity": consumed}  # fmt: skip
    return {
        "metadata": {"name": f"c{number}", "namespace": "default", "uid": f"uid-{number}"},
        "status": {"allocation": {"devices": {"results": [result]}}},
    }


class Asker:
    """The kubelet's part."""

    def __init__(self, channel: Any) -> None:
        self._wire = DraWire(native.locate().kubelet_descriptors)
        self._channel = channel

    async def call(self, method: str, number: int) -> str:
        """The error; empty: none."""
        request, response, _ = self._wire.service_methods(service("v1"))[method]
        ask = request(
            claims=[{"namespace": "default", "name": f"c{number}", "uid": f"uid-{number}"}]
        )
        call = self._channel.unary_unary(
            f"/{service('v1')}/{method}",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )
        answer = await call(ask, timeout=45)
        return str(answer.claims[f"uid-{number}"].error)


def directory_bytes(directory: Path) -> int:
    return sum(one.stat().st_size for one in directory.glob("*.json"))


async def churn(directory: Path, api: ApiServer, count: int) -> tuple[list[float], list[float]]:
    """Seconds of prepare, without what the runtime needs, and of unprepare."""
    await asyncio.to_thread(until, "the slices are there", lambda: bool(slices(api)))
    devices = [one["name"] for each in slices(api) for one in each["spec"]["devices"]]
    assert len(devices) == GPUS
    (socket,) = (directory / "kubelet/plugins/sluice.dev").glob("dra-*.sock")
    prepared: list[float] = []
    given_back: list[float] = []
    async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
        asker = Asker(channel)
        for number in range(count + LIVING):
            if number < count:
                api.put(CLAIMS, claim(number, devices[number % GPUS]))
                began_s = time.monotonic()
                assert await asker.call("NodePrepareResources", number) == ""
                waited_s = settles_s(directory_bytes(directory / "cdi"))
                prepared.append(max(0.0, time.monotonic() - began_s - waited_s))
            if number >= LIVING:
                began_s = time.monotonic()
                assert await asker.call("NodeUnprepareResources", number - LIVING) == ""
                given_back.append(time.monotonic() - began_s)
    return prepared, given_back


def slices(api: ApiServer) -> list[dict[str, Any]]:
    return [one for (where, _), one in api.objects.items() if where == SLICES]


async def measured(directory: Path, count: int) -> tuple[list[float], list[float]]:
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
            return await churn(directory, api, count)
        finally:
            await asyncio.to_thread(place.__exit__, None, None, None)
    finally:
        await api.close()


def run(quick: bool) -> list[Entry]:
    with workplace() as directory:
        (directory / "kubelet").mkdir()
        prepared, given_back = asyncio.run(measured(directory, 200 if quick else 1000))
    ms = [1000 * one for one in prepared]
    back = [1000 * one for one in given_back]
    return [
        entry("dra_prepare_p99_ms", "ms", ms, value=quantile(ms, 0.99), target="<= 20"),
        entry("dra_unprepare_p99_ms", "ms", back, value=quantile(back, 0.99)),
    ]

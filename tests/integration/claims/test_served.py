"""The driver for claims as a kubelet finds it: its registration, and its health in every version it
may listen to."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import grpc

from tests.kit.apiserver import ApiServer
from tests.kit.daemon.claims import Asker, kubeconfig, registration, settings
from tests.kit.node import Node, running, until
from tests.kit.workplace import workplace

HEALTHY, UNHEALTHY = 1, 2


async def served(directory: Path) -> tuple[Any, dict[str, list[dict[str, int]]]]:
    """Its registration, and the healths of both versions while a GPU is lost and before."""
    api = ApiServer()
    await api.start()
    (directory / "kubelet").mkdir()
    (directory / "kubeconfig").write_text(json.dumps(kubeconfig(api.url)))
    place = running(directory, gpus="2xh100-80gb", settings=settings(directory))
    try:
        node: Node = await asyncio.to_thread(place.__enter__)
        try:
            sockets = directory / "kubelet/plugins/sluice.dev"
            await asyncio.to_thread(
                until, "the driver is served", lambda: list(sockets.glob("dra-*.sock"))
            )
            info = await registration(directory)
            found: dict[str, list[dict[str, int]]] = {"v1": [], "v1alpha1": []}
            async with grpc.aio.insecure_channel(f"unix:{info.endpoint}") as channel:
                asker = Asker(channel)
                for version, said in found.items():
                    said.append(await asker.healths(version))
                (node.directory / "gpu" / "control").write_text("gpu_lost=0\n")
                async with asyncio.timeout(60):
                    while UNHEALTHY not in (await asker.healths("v1")).values():
                        await asyncio.sleep(0.1)
                for version, said in found.items():
                    said.append(await asker.healths(version))
            return info, found
        finally:
            await asyncio.to_thread(place.__exit__, None, None, None)
    finally:
        await api.close()


def test_the_driver_is_announced_and_its_health_is_told_in_both_versions() -> None:
    with workplace() as directory:  # sockets have short names
        info, found = asyncio.run(served(directory))
    assert (info.type, info.name) == ("DRAPlugin", "sluice.dev")
    # Without the last two a kubelet of 1.37 asks for no health; older ones look for the first two alone.
    assert list(info.supported_versions) == [
        "v1.DRAPlugin",
        "v1beta1.DRAPlugin",
        "v1.DRAResourceHealth",
        "v1alpha1.DRAResourceHealth",
    ]
    assert found["v1"] == found["v1alpha1"]
    well, ill = found["v1"]
    assert list(well.values()) == [HEALTHY, HEALTHY]
    assert sorted(ill.values()) == [HEALTHY, UNHEALTHY]

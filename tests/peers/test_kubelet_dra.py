"""The driver for claims under the kubelet's own manager of DRA drivers (k8s.io/kubernetes): its registration, and one
stream for the health of its devices, or none where the kubelet's gate is off (1.35 and older by default).

Kubernetes 1.36 asks for the health service `v1alpha1` whether it is announced or not, and asks again every five seconds
where it is missing; 1.37 asks for the newest that is announced, `v1`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.apiserver import ApiServer
from tests.kit.daemon.claims import kubeconfig, settings
from tests.kit.node import Node, until
from tests.kit.workplace import workplace
from tests.peers.peer import Peer, build

pytestmark = [pytest.mark.peers, pytest.mark.full, pytest.mark.timeout(1800)]
RETRY_S = 5.0
"""The kubelet's pause between two attempts to follow the health of a driver's devices."""
REGISTERED = '"Registered DRA plugin"'
VERSIONS = pytest.mark.parametrize("mod", ["go.mod", "v1.37.mod"], ids=["1.36", "1.37"])
ATTEMPT = '"Attempting to start WatchResources health stream"'
BROKEN = '"Error receiving from WatchResources stream"'


class Kubelet:
    def __init__(self, directory: Path, mod: str, gate: bool) -> None:
        self._log = directory / "kubelet.log"
        self._state = directory / "kubelet" / "state" / "dra_health_state"
        gates = f"ResourceHealthStatus={str(gate).lower()}"
        if not gate:
            gates += ",ResourceHealthStatusMessage=false"  # Kubernetes turns it off with the other
        program = build("kubelet", mod, "./dra")
        self._peer = Peer(
            [program, directory / "kubelet", gates], stderr=self._log.open("w", encoding="utf-8")
        )

    def lines(self, text: str) -> list[str]:
        return [one for one in self._log.read_text().splitlines() if text in one]

    def healths(self) -> list[str]:
        """Health of each device that the kubelet knows, the worst last."""
        if not self._state.exists():
            return []
        drivers: dict[str, Any] = json.loads(self._state.read_text())
        devices = drivers.get("sluice.dev", {}).get("Devices", {})
        return sorted(str(one["Health"]) for one in devices.values())

    def close(self) -> None:
        self._peer.close()


@contextlib.asynccontextmanager
async def lab(directory: Path, mod: str, gate: bool) -> AsyncIterator[tuple[Kubelet, Node]]:
    api = ApiServer()
    await api.start()
    (directory / "kubelet").mkdir()
    (directory / "kubeconfig").write_text(json.dumps(kubeconfig(api.url)))
    kubelet = Kubelet(directory, mod, gate)
    node = Node(directory, gpus="2xh100-80gb", settings=settings(directory))
    try:
        await asyncio.to_thread(node.start)
        yield kubelet, node
    finally:
        await asyncio.to_thread(node.stop)
        kubelet.close()
        await api.close()


async def followed(directory: Path, mod: str) -> None:
    async with lab(directory, mod, gate=True) as (kubelet, node):
        await asyncio.to_thread(
            until, "both are well", lambda: kubelet.healths() == ["Healthy", "Healthy"]
        )
        (node.directory / "gpu" / "control").write_text("gpu_lost=0\n")
        await asyncio.to_thread(
            until, "one is ill", lambda: kubelet.healths() == ["Healthy", "Unhealthy"]
        )
        await asyncio.sleep(2 * RETRY_S)
        assert len(kubelet.lines(ATTEMPT)) == 1, "one stream, which stays open"
        assert kubelet.lines(BROKEN) == []
        if mod != "go.mod":
            assert len(kubelet.lines('healthService="v1.DRAResourceHealth"')) == 1
        assert len(kubelet.lines(REGISTERED)) == 1
        (line,) = kubelet.lines(REGISTERED)
        assert 'chosenService="v1.DRAPlugin"' in line

        await asyncio.to_thread(node.kill_daemon)
        await asyncio.to_thread(node.start)
        await asyncio.to_thread(
            until, "the next daemon is followed", lambda: len(kubelet.lines(REGISTERED)) == 2
        )
        await asyncio.to_thread(until, "healths are known again", kubelet.healths)
        broken = len(kubelet.lines(BROKEN))
        attempts = len(kubelet.lines(ATTEMPT))
        await asyncio.sleep(2 * RETRY_S)
        assert len(kubelet.lines(BROKEN)) == broken, "the sockets of the killed one are gone"
        assert len(kubelet.lines(ATTEMPT)) == attempts


async def not_followed(directory: Path, mod: str) -> None:
    async with lab(directory, mod, gate=False) as (kubelet, _):
        await asyncio.to_thread(until, "it is registered", lambda: kubelet.lines(REGISTERED))
        await asyncio.sleep(RETRY_S)
        assert kubelet.lines(ATTEMPT) == []
        assert kubelet.healths() == []
        assert len(kubelet.lines(REGISTERED)) == 1


@VERSIONS
def test_a_kubelet_follows_the_health_of_devices_by_one_stream_without_errors(mod: str) -> None:
    with workplace() as directory:
        asyncio.run(followed(directory, mod))


@VERSIONS
def test_a_kubelet_whose_gate_is_off_registers_the_driver_and_asks_for_no_health(mod: str) -> None:
    with workplace() as directory:
        asyncio.run(not_followed(directory, mod))

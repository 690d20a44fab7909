"""A daemon that gives GPUs to claims, beside an API server in memory: its settings, claims as a scheduler leaves them, and the
kubelet's calls over the driver's sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc

from nodeagent import native
from nodeagent.adapters.dra.wire import REGISTRATION, DraWire, health_service, service

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
        return (await self.call_all(method, (number,)))[0]

    async def call_all(self, method: str, numbers: Sequence[int]) -> list[str]:
        """The errors of one call with so many claims."""
        request, response, _ = self._wire.service_methods(service("v1"))[method]
        ask = request(
            claims=[
                {"namespace": "default", "name": f"c{number}", "uid": f"uid-{number}"}
                for number in numbers
            ]
        )
        call = self._channel.unary_unary(
            f"/{service('v1')}/{method}",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )
        answer = await call(ask, timeout=45)
        return [str(answer.claims[f"uid-{number}"].error) for number in numbers]

    async def healths(self, version: str) -> dict[str, int]:
        """First message of the health stream: the health of each device."""
        request, response, _ = self._wire.service_methods(health_service(version))[
            "NodeWatchResources"
        ]
        stream = self._channel.unary_stream(
            f"/{health_service(version)}/NodeWatchResources",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )(request())
        try:
            async with asyncio.timeout(30):
                answer = await stream.read()
        finally:
            stream.cancel()
        return {one.device.device_name: one.health for one in answer.devices}


async def registration(directory: Path) -> Any:
    """The driver's registration as the kubelet receives it."""
    (socket,) = (directory / "kubelet/plugins_registry").glob("sluice.dev-*-reg.sock")
    wire = DraWire(native.locate().kubelet_descriptors)
    request, response, _ = wire.service_methods(REGISTRATION)["GetInfo"]
    async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
        call = channel.unary_unary(
            f"/{REGISTRATION}/GetInfo",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )
        return await call(request(), timeout=30)

"""The kubelet's own records, read only: its checkpoint file, PodResources and the Pods API.

The checkpoint is written by renaming, so one reading is one state. Its checksum is a hash of Go
structures and is not verified; a file with another format is an error, never an empty list.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, Final

import grpc

from nodeagent.adapters.kubelet.wire import POD_RESOURCES, PODS, KubeletWire, driver_of, nonce_of
from nodeagent.ports.kubelet import (
    Checkpoint,
    CheckpointEntry,
    ContainerRequests,
    KubeletAway,
    Listing,
    NoPodSource,
    Owner,
    OwnerRef,
    PodIdentity,
)
from nodeagent.units import PodUid

CHECKPOINT: Final = "device-plugins/kubelet_internal_checkpoint"
POD_RESOURCES_SOCKET: Final = "pod-resources/kubelet.sock"
PODS_SOCKET: Final = "pods-api/pods-api.sock"
"""Socket of a kubelet with the feature gate PodsAPI; tests/peers compares it with Kubernetes'
own."""
LARGEST_ANSWER_BYTES: Final = 64 << 20
LARGEST_CHECKPOINT_BYTES: Final = 256 << 20
DEADLINE_S: Final = 5.0


class KubeletFiles:
    """A KubeletRecords and PodSource over one kubelet's directory."""

    def __init__(self, root: Path, resources: AbstractSet[str], wire: KubeletWire) -> None:
        """`root` is the kubelet's --root-dir; `resources` are ours, and may grow."""
        self._root = root
        self._resources = resources
        self._wire = wire
        self._read: tuple[tuple[int, ...], Checkpoint] | None = None

    @property
    def pods_socket(self) -> Path:
        return self._root / PODS_SOCKET

    def checkpoint(self) -> Checkpoint:
        path = self._root / CHECKPOINT
        try:
            with path.open("rb") as file:
                status = (*file_identity(file.fileno()), len(self._resources))
                if self._read is not None and self._read[0] == status:
                    return self._read[1]
                data = file.read(LARGEST_CHECKPOINT_BYTES)
        except FileNotFoundError:
            return Checkpoint()  # The kubelet has never allocated a device.
        except OSError as error:
            raise KubeletAway(f"{path}: {error.strerror}") from error
        try:
            found = read_checkpoint(json.loads(data), self._resources, self._wire)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise KubeletAway(f"{path}: not a checkpoint of the kubelet: {error}") from error
        self._read = (status, found)
        return found

    async def listings(self) -> list[Listing]:
        response = await self._request(
            POD_RESOURCES_SOCKET,
            f"/{POD_RESOURCES}/List",
            self._wire.message_class("v1.ListPodResourcesRequest")(),
            self._wire.message_class("v1.ListPodResourcesResponse"),
        )
        return self._wire.read_listings(response.pod_resources, self._resources)

    async def listings_of(self, namespace: str, name: str) -> list[Listing]:
        request = self._wire.message_class("v1.GetPodResourcesRequest")
        response = await self._request(
            POD_RESOURCES_SOCKET,
            f"/{POD_RESOURCES}/Get",
            request(pod_name=name, pod_namespace=namespace),
            self._wire.message_class("v1.GetPodResourcesResponse"),
        )
        return self._wire.read_listings([response.pod_resources], self._resources)

    async def requests(self, pod: PodIdentity, container: str) -> ContainerRequests:
        """A container's requests from the Pods API, if this kubelet serves it (feature gate
        PodsAPI)."""
        socket = self.pods_socket
        if not socket.exists():
            raise NoPodSource(
                f"the kubelet has no Pods API at {socket} (feature gate PodsAPI, Kubernetes 1.36)"
            )
        response = await self._request(
            PODS_SOCKET,
            f"/{PODS}/GetPod",
            self._wire.message_class("v1alpha1.GetPodRequest")(podUID=pod.uid),
            self._wire.message_class("v1alpha1.GetPodResponse"),
        )
        try:
            found = self._wire.read_requests(response.pod, container)
        except ValueError as error:
            raise KubeletAway(f"{socket}: pod {pod.uid}: {error}") from error
        if found is None:
            raise KubeletAway(f"{socket}: pod {pod.uid} has no container {container}")
        return found

    async def owners(self, namespace: str, first: OwnerRef | None) -> tuple[Owner, ...]:
        if first is None:
            return ()
        raise NoPodSource(
            f"{first.kind} {namespace}/{first.name} is unknown to the kubelet: only the API server"
            " has it, and access to it is not configured"
        )

    async def _request(self, socket: str, method: str, request: Any, kind: Any) -> Any:
        path = self._root / socket
        async with grpc.aio.insecure_channel(
            f"unix:{path}",
            options=[
                ("grpc.max_receive_message_length", LARGEST_ANSWER_BYTES),
                ("grpc.default_authority", "localhost"),
            ],
        ) as channel:
            call = channel.unary_unary(
                method,
                request_serializer=type(request).SerializeToString,
                response_deserializer=kind.FromString,
            )
            try:
                return await call(request, timeout=DEADLINE_S)
            except grpc.aio.AioRpcError as error:
                raise KubeletAway(
                    f"{path}: {error.code().name.lower()}: {error.details()}"
                ) from error


def file_identity(descriptor: int) -> tuple[int, int, int]:
    status = os.fstat(descriptor)
    return (status.st_ino, status.st_mtime_ns, status.st_size)


def read_checkpoint(document: Any, resources: AbstractSet[str], wire: KubeletWire) -> Checkpoint:
    """Allocations of these resources. Raises ValueError, TypeError, KeyError or AttributeError for
    another format."""
    data = document["Data"]
    entries = []
    for entry in data.get("PodDeviceEntries") or ():
        if entry["ResourceName"] not in resources:
            continue
        answer = wire.read_answer_bytes(_answer(entry.get("AllocResp")))
        entries.append(
            CheckpointEntry(
                pod_uid=PodUid(_text(entry["PodUID"])),
                container=_text(entry["ContainerName"]),
                resource=_text(entry["ResourceName"]),
                device_ids=_device_ids(entry["DeviceIDs"]),
                nonce=nonce_of(answer),
                driver=driver_of(answer),
            )
        )
    known = data.get("RegisteredDevices") or {}
    registered = [_text(one) for name in sorted(resources) for one in known.get(name) or ()]
    return Checkpoint(tuple(entries), tuple(registered))


def _device_ids(value: Any) -> frozenset[str]:
    """Device IDs, listed by NUMA node, or in a plain list before Kubernetes 1.20."""
    lists = value.values() if isinstance(value, Mapping) else [value]
    return frozenset(_text(one) for ids in lists for one in ids or ())


def _answer(value: Any) -> bytes:
    if not value:
        return b""
    try:
        return base64.b64decode(_text(value), validate=True)
    except binascii.Error as error:
        raise ValueError(f"AllocResp: {error}") from error


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a string, got {value!r}")
    return value

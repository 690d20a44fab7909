"""Conversion between the messages of the kubelet's interfaces and our own values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

from nodeagent.adapters.host.descriptors import Descriptors
from nodeagent.ports.containers import ContainerAnswer, ContainerMount, ContainerNode
from nodeagent.ports.kubelet import (
    ContainerRequests,
    Listing,
    Nonce,
    OwnerRef,
    PodIdentity,
    SlotDevice,
)
from nodeagent.units import PodUid

VERSION: Final = "v1beta1"
PLUGIN: Final = "v1beta1.DevicePlugin"
REGISTRATION: Final = "v1beta1.Registration"
POD_RESOURCES: Final = "v1.PodResourcesLister"
PODS: Final = "v1alpha1.Pods"

_CDI_NAME: Final = re.compile(r"sluice\.dev/grant=([0-9a-f]{32})")
_DRIVER_NAME: Final = re.compile(r"sluice\.dev/driver=([0-9a-f]{32})(?![0-9A-Za-z_.:-])")
_BINDING: Final = re.compile(r"/([0-9a-f]{32})(?:/|$)")
"""Nonce in the path of a mount; the strategy envvar mounts a directory of that name."""


class KubeletWire(Descriptors):
    """The message classes of kubelet.binpb."""

    def plugin(self, name: str) -> Any:
        """The class of `v1beta1.<name>`."""
        return self.message_class(f"v1beta1.{name}")

    # --- the device plugin --------------------------------------------------------------------

    def write_options(self) -> Any:
        return self.plugin("DevicePluginOptions")(
            pre_start_required=True, get_preferred_allocation_available=True
        )

    def write_register(self, endpoint: str, resource: str) -> Any:
        return self.plugin("RegisterRequest")(
            version=VERSION,
            endpoint=endpoint,
            resource_name=resource,
            options=self.write_options(),
        )

    def write_devices(self, devices: Sequence[SlotDevice]) -> Any:
        """The full list. An unknown NUMA node is left out, because the topology manager would
        refuse pods for an empty one or -1."""
        device, topology = self.plugin("Device"), self.plugin("TopologyInfo")
        numa = self.plugin("NUMANode")
        known = {one.numa_node for one in devices if one.numa_node is not None}
        places = {node: topology(nodes=[numa(ID=node)]) for node in known}
        return self.plugin("ListAndWatchResponse")(
            devices=[
                device(
                    ID=one.id,
                    health="Healthy" if one.healthy else "Unhealthy",
                    topology=places.get(one.numa_node) if one.numa_node is not None else None,
                )
                for one in devices
            ]
        )

    def write_answers(self, answers: Sequence[ContainerAnswer]) -> Any:
        return self.plugin("AllocateResponse")(
            container_responses=[self.write_answer(one) for one in answers]
        )

    def write_answer(self, answer: ContainerAnswer) -> Any:
        mount, node = self.plugin("Mount"), self.plugin("DeviceSpec")
        return self.plugin("ContainerAllocateResponse")(
            envs=dict(answer.environment),
            annotations=dict(answer.annotations),
            mounts=[
                mount(
                    container_path=one.container_path,
                    host_path=one.host_path,
                    read_only=one.read_only,
                )
                for one in answer.mounts
            ],
            devices=[
                node(
                    container_path=one.container_path,
                    host_path=one.host_path,
                    permissions=one.permissions,
                )
                for one in answer.nodes
            ],
            cdi_devices=[self.plugin("CDIDevice")(name=name) for name in answer.cdi_devices],
        )

    def read_answer(self, message: Any) -> ContainerAnswer:
        return ContainerAnswer(
            cdi_devices=tuple(one.name for one in message.cdi_devices),
            annotations=dict(message.annotations),
            environment=dict(message.envs),
            mounts=tuple(
                ContainerMount(one.container_path, one.host_path, one.read_only)
                for one in message.mounts
            ),
            nodes=tuple(
                ContainerNode(one.container_path, one.host_path, one.permissions)
                for one in message.devices
            ),
        )

    def read_answer_bytes(self, answer: bytes) -> ContainerAnswer:
        """The answer that the kubelet keeps; empty if the bytes are not an answer."""
        try:
            message = self.plugin("ContainerAllocateResponse").FromString(answer)
        except Exception:  # The name of protobuf's DecodeError differs between versions.
            return ContainerAnswer()
        return self.read_answer(message)

    # --- PodResources and Pods ----------------------------------------------------------------

    def read_listings(self, pods: Iterable[Any], resources: AbstractSet[str]) -> list[Listing]:
        """Containers of these PodResources that hold devices of these resources; the kubelet lists
        a container's devices in one entry per NUMA node."""
        found = []
        for pod in pods:
            for container in pod.containers:
                ids = frozenset(
                    device_id
                    for entry in container.devices
                    if entry.resource_name in resources
                    for device_id in entry.device_ids
                )
                if ids:
                    found.append(Listing(pod.namespace, pod.name, container.name, ids))
        return found

    def read_requests(self, pod: bytes, container: str) -> ContainerRequests | None:
        """The requests of a container of a serialised Pod; None if the pod has no such container.
        Raises ValueError."""
        try:
            read = self.message_class("v1alpha1.Pod").FromString(pod)
        except Exception as error:
            raise ValueError(f"not a pod: {error}") from error
        for one in (*read.spec.containers, *read.spec.initContainers):
            if one.name == container:
                asked = _amounts(one.resources.requests) | _amounts(one.resources.limits)
                meta = read.metadata
                return ContainerRequests(
                    PodIdentity(PodUid(meta.uid), meta.namespace, meta.name),
                    tuple(sorted(asked.items())),
                    tuple(sorted(meta.labels.items())),
                    tuple(sorted(meta.annotations.items())),
                    _controller(meta.ownerReferences),
                    read.spec.subdomain,
                )
        return None


def _controller(references: Sequence[Any]) -> OwnerRef | None:
    for one in references:
        if one.controller:
            return OwnerRef(one.apiVersion, one.kind, one.name, one.uid)
    return None


def _amounts(quantities: Mapping[str, Any]) -> dict[str, str]:
    return {name: quantity.string for name, quantity in quantities.items()}


def driver_of(answer: ContainerAnswer) -> str:
    """Generation of the driver that an answer names besides the nonce; empty if it names none."""
    for text in (*answer.cdi_devices, *answer.annotations.values()):
        found = _DRIVER_NAME.search(text)
        if found is not None:
            return found[1]
    return ""


def nonce_of(answer: ContainerAnswer) -> Nonce | None:
    """The nonce in an answer of any strategy; None if the answer is not ours."""
    for text in (*answer.cdi_devices, *answer.annotations.values()):
        found = _CDI_NAME.search(text)
        if found is not None:
            return Nonce(found[1])
    for mount in answer.mounts:
        found = _BINDING.search(mount.host_path)
        if found is not None:
            return Nonce(found[1])
    return None

"""A kubelet as a device plugin sees it: its device manager, checkpoint and PodResources, over real
sockets.

It behaves as the kubelet's own code does (checked against it in tests/peers): it removes all
sockets when it starts, dials back within Register, asks GetPreferredAllocation and Allocate
without a deadline once per container, writes the checkpoint between Allocate and
PreStartContainer, repeats its kept answer for every restart, hands an init container's devices on
to the application containers, and frees devices only when it needs some.

`python -m tests.kit.fakes.kubelet --dir DIR` runs one by itself: a line of JSON in, a line out,
for tests in other languages; see `serve_lines`.

Longer than a file should be: the parts keep one another's state as the kubelet's own do.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import dataclasses
import json
import logging
import os
import random
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc

from nodeagent import native
from nodeagent.adapters.kubelet.wire import (
    PLUGIN,
    POD_RESOURCES,
    PODS,
    REGISTRATION,
    VERSION,
    KubeletWire,
)
from nodeagent.ports.containers import ContainerAnswer

log = logging.getLogger(__name__)

DIAL_BACK_S: Final = 10.0
PRE_START_S: Final = 30.0
LARGEST_ANSWER_BYTES: Final = 64 << 20


class AdmissionError(Exception):
    """The pod fails for good: UnexpectedAdmissionError."""


class StartError(Exception):
    """The container cannot start now: CreateContainerConfigError, tried again later."""


@dataclass(frozen=True, slots=True)
class Container:
    name: str
    gpus: int = 1
    init: bool = False
    sidecar: bool = False
    """An init container that goes on running and keeps its devices."""
    limits: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pod:
    name: str
    containers: tuple[Container, ...] = (Container("main"),)
    namespace: str = "default"
    uid: str = field(default_factory=lambda: str(uuid.uuid4()))
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    owner: Mapping[str, str] = field(default_factory=dict)
    """Its controller: apiVersion, kind, name, uid. Empty: none."""


@dataclass(slots=True)
class Endpoint:
    """One registered plugin."""

    resource: str
    path: Path
    channel: Any
    devices: dict[str, bool] = field(default_factory=dict)
    """Health by id, as last reported."""
    numa: dict[str, int] = field(default_factory=dict)
    preferred: bool = False
    pre_start: bool = False
    lists: int = 0
    task: asyncio.Task[None] | None = None
    stopped: bool = False


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of the checkpoint."""

    pod: str
    container: str
    resource: str
    device_ids: tuple[str, ...]
    answer: bytes


class FakeKubelet:
    """One kubelet over one root directory; `stop` and `start` are its restart."""

    def __init__(self, root: Path, wire: KubeletWire | None = None, seed: int = 0) -> None:
        self.root = root
        self.wire = wire or KubeletWire(native.locate().kubelet_descriptors)
        self.flat_checkpoint = False
        """True for a checkpoint as before Kubernetes 1.20."""
        self.pods_api = False
        """Serve the Pods API (feature gate PodsAPI)."""
        self.checkpoint_fails = False
        """Leave the checkpoint as it is: a kubelet between two writes."""
        self.padding_bytes = 0
        """Makes the PodResources answer so much longer."""
        self.gets_pods = True
        """Answer Get of PodResources, as from Kubernetes 1.34."""
        self.lists = 0
        """Lists of PodResources since the start."""
        self.endpoints: dict[str, Endpoint] = {}
        self.registered_total = 0
        self.seconds: dict[str, list[float]] = {}
        """How long a plugin took for each call, by its name."""
        self.pods: dict[str, Pod] = {}
        """Active ones, by UID."""
        self.entries: list[Entry] = []
        self.given_again: tuple[str, ...] = ()
        """Devices in use that the next Allocate has, too: a kubelet forgets them when PodResources is listed during an
        Allocate."""
        self._random = random.Random(seed)
        self._choosing = asyncio.Lock()
        self._promised: set[str] = set()
        """Taken by an Allocate that has not been answered."""
        self._changed = asyncio.Event()
        self._servers: list[Any] = []

    # --- life -----------------------------------------------------------------------------------

    @property
    def plugins_dir(self) -> Path:
        return self.root / "device-plugins"

    @property
    def checkpoint_path(self) -> Path:
        return self.plugins_dir / "kubelet_internal_checkpoint"

    async def start(self) -> None:
        self.plugins_dir.mkdir(mode=0o750, parents=True, exist_ok=True)
        for path in self.plugins_dir.iterdir():
            if path.is_socket():
                path.unlink()
        self._read_checkpoint()
        await self._serve(
            self.plugins_dir / "kubelet.sock", REGISTRATION, {"Register": self._register}
        )
        await self._serve(
            self.root / "pod-resources" / "kubelet.sock",
            POD_RESOURCES,
            {"List": self._list, "Get": self._get},
        )
        if self.pods_api:
            await self._serve(
                self.root / "pods-api" / "pods-api.sock", PODS, {"GetPod": self._get_pod}
            )

    async def stop(self) -> None:
        """Stop as systemd would: its list of plugins is lost, the checkpoint stays."""
        for endpoint in self.endpoints.values():
            await self._drop(endpoint)
        self.endpoints = {}
        for server in self._servers:
            await server.stop(0)
        self._servers = []

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def _serve(self, path: Path, service: str, behaviours: Mapping[str, Any]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        server = grpc.aio.server()
        handlers = {}
        for name, behaviour in behaviours.items():
            request, response, _ = self.wire.service_methods(service)[name]
            handlers[name] = grpc.unary_unary_rpc_method_handler(
                behaviour,
                request_deserializer=request.FromString,
                response_serializer=response.SerializeToString,
            )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        server.add_insecure_port(f"unix:{path}")
        await server.start()
        self._servers.append(server)

    # --- plugins --------------------------------------------------------------------------------

    async def _register(self, request: Any, context: Any) -> Any:
        if request.version != VERSION:
            await context.abort(grpc.StatusCode.UNKNOWN, f"unsupported version {request.version}")
        if "/" not in request.resource_name or ".." in request.endpoint or "/" in request.endpoint:
            await context.abort(grpc.StatusCode.UNKNOWN, "invalid resource name or endpoint")
        endpoint = Endpoint(
            request.resource_name,
            self.plugins_dir / request.endpoint,
            grpc.aio.insecure_channel(
                f"unix:{self.plugins_dir / request.endpoint}",
                options=[
                    ("grpc.default_authority", "localhost"),
                    ("grpc.max_receive_message_length", LARGEST_ANSWER_BYTES),
                    ("grpc.initial_reconnect_backoff_ms", 50),
                    # A pool shared with the plugin that was before it would share its backoff, too.
                    ("grpc.use_local_subchannel_pool", 1),
                ],
            ),
        )
        try:
            options = await asyncio.wait_for(self._options(endpoint), DIAL_BACK_S)
        except (grpc.aio.AioRpcError, TimeoutError) as error:
            await endpoint.channel.close()
            await context.abort(grpc.StatusCode.UNKNOWN, f"failed to dial device plugin: {error!r}")
        # The options of the request are not what counts.
        endpoint.pre_start = options.pre_start_required
        endpoint.preferred = options.get_preferred_allocation_available
        old = self.endpoints.get(request.resource_name)
        if old is not None:
            await self._drop(old)
        self.endpoints[request.resource_name] = endpoint
        self.registered_total += 1
        endpoint.task = asyncio.create_task(self._watch(endpoint))
        self._note()
        return self.wire.plugin("Empty")()

    async def _options(self, endpoint: Endpoint) -> Any:
        call = self._call(endpoint, "GetDevicePluginOptions")
        return await call(self.wire.plugin("Empty")(), wait_for_ready=True)

    def _call(self, endpoint: Endpoint, method: str) -> Any:
        request, response, streams = self.wire.service_methods(PLUGIN)[method]
        make = endpoint.channel.unary_stream if streams else endpoint.channel.unary_unary
        return make(
            f"/{PLUGIN}/{method}",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )

    @contextlib.contextmanager
    def _timed(self, call: str) -> Iterator[None]:
        began_s = time.monotonic()
        yield
        self.seconds.setdefault(call, []).append(time.monotonic() - began_s)

    async def _watch(self, endpoint: Endpoint) -> None:
        """The end of the stream makes every device unhealthy at once."""
        began_s = time.monotonic()
        try:
            async for message in self._call(endpoint, "ListAndWatch")(self.wire.plugin("Empty")()):
                if not endpoint.lists:
                    self.seconds.setdefault("ListAndWatch", []).append(time.monotonic() - began_s)
                endpoint.devices = {one.ID: one.health == "Healthy" for one in message.devices}
                endpoint.numa = {
                    one.ID: one.topology.nodes[0].ID
                    for one in message.devices
                    if one.HasField("topology") and one.topology.nodes
                }
                endpoint.lists += 1
                self._note()
        except grpc.aio.AioRpcError as error:
            log.debug("the stream of %s: %s", endpoint.resource, error.code())
        endpoint.stopped = True
        endpoint.devices = dict.fromkeys(endpoint.devices, False)
        self._note()

    async def _drop(self, endpoint: Endpoint) -> None:
        if endpoint.task is not None:
            endpoint.task.cancel()
            await asyncio.gather(endpoint.task, return_exceptions=True)
        await endpoint.channel.close()

    def _note(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def until(self, condition: Any, deadline_s: float = 60.0) -> None:
        """Wait for the condition; it is evaluated again after each message of a plugin. Raises
        TimeoutError."""
        async with asyncio.timeout(deadline_s):
            while not condition():
                await self._changed.wait()

    def allocatable(self, resource: str) -> list[str]:
        endpoint = self.endpoints.get(resource)
        return [one for one, healthy in endpoint.devices.items() if healthy] if endpoint else []

    # --- pods -----------------------------------------------------------------------------------

    async def admit(self, pod: Pod, resource: str) -> None:
        """Devices for every container, init containers first. Raises AdmissionError."""
        self.pods[pod.uid] = pod
        reusable: set[str] = set()
        try:
            for container in sorted(pod.containers, key=lambda one: not one.init):
                ids = await self._allocate(pod, container, resource, reusable)
                if container.init and not container.sidecar:
                    reusable |= set(ids)
                else:
                    reusable -= set(ids)
        except (AdmissionError, grpc.aio.AioRpcError) as error:
            self.pods.pop(pod.uid, None)
            raise AdmissionError(f"UnexpectedAdmissionError: {_told(error)}") from error

    async def _allocate(
        self, pod: Pod, container: Container, resource: str, reusable: set[str]
    ) -> tuple[str, ...]:
        if not container.gpus:
            return ()
        kept = self._entry(pod.uid, container.name)
        if kept is not None:
            return kept.device_ids
        endpoint = self.endpoints.get(resource)
        if endpoint is None or not endpoint.devices:
            raise AdmissionError(f"no healthy devices present; cannot allocate {resource}")
        async with self._choosing:
            ids = await self._choose(endpoint, container.gpus, resource, reusable)
            self._promised.update(ids)
        try:
            request = self.wire.plugin("AllocateRequest")(
                container_requests=[self.wire.plugin("ContainerAllocateRequest")(devices_ids=ids)]
            )
            with self._timed("Allocate"):
                response = await self._call(endpoint, "Allocate")(request)  # without a deadline
            if len(response.container_responses) != 1:
                raise AdmissionError("no containers in the response")
            answer = response.container_responses[0].SerializeToString()
            self.entries.append(Entry(pod.uid, container.name, resource, tuple(ids), answer))
        finally:
            self._promised.difference_update(ids)
        self._write_checkpoint()
        return tuple(ids)

    async def _choose(
        self, endpoint: Endpoint, count: int, resource: str, reusable: set[str]
    ) -> list[str]:
        reused = sorted(reusable)[:count]
        if len(reused) == count:
            return reused
        if self.given_again:
            return list(self.given_again[:count])
        self._free_ended()
        taken = {one for entry in self.entries for one in entry.device_ids} | self._promised
        free = [one for one in self.allocatable(resource) if one not in taken]
        needed = count - len(reused)
        if len(free) < needed:
            raise AdmissionError(
                f"requested number of devices unavailable for {resource}. Requested: {needed},"
                f" Available: {len(free)}"
            )
        if endpoint.preferred and needed < len(free):
            ask = self.wire.plugin("ContainerPreferredAllocationRequest")(
                available_deviceIDs=[*free, *reused],
                must_include_deviceIDs=reused,
                allocation_size=count,
            )
            request = self.wire.plugin("PreferredAllocationRequest")(container_requests=[ask])
            response = await self._call(endpoint, "GetPreferredAllocation")(request)
            chosen = [one for one in response.container_responses[0].deviceIDs if one in free]
            if len(chosen) >= needed:
                return [*reused, *chosen[:needed]]
        return [*reused, *self._random.sample(free, needed)]

    def _free_ended(self) -> None:
        self.entries = [one for one in self.entries if one.pod in self.pods]

    def _entry(self, pod: str, container: str) -> Entry | None:
        for one in self.entries:
            if one.pod == pod and one.container == container:
                return one
        return None

    async def start_container(self, pod: str, container: str) -> ContainerAnswer:
        """Before every start, the first as well as after a crash: PreStartContainer, then the
        kept answer for the runtime. Raises StartError."""
        entry = self._entry(pod, container)
        if entry is None:
            return ContainerAnswer()
        endpoint = self.endpoints.get(entry.resource)
        if endpoint is None or endpoint.stopped:
            raise StartError(f"endpoint not found in cache for {entry.resource}")
        if endpoint.pre_start:
            request = self.wire.plugin("PreStartContainerRequest")(devices_ids=entry.device_ids)
            try:
                with self._timed("PreStartContainer"):
                    await self._call(endpoint, "PreStartContainer")(request, timeout=PRE_START_S)
            except grpc.aio.AioRpcError as error:
                raise StartError(f"CreateContainerConfigError: {_told(error)}") from error
        message = self.wire.plugin("ContainerAllocateResponse").FromString(entry.answer)
        return self.wire.read_answer(message)

    def device_ids(self, pod: str, container: str = "main") -> tuple[str, ...]:
        entry = self._entry(pod, container)
        return entry.device_ids if entry else ()

    def end(self, pod: str) -> None:
        """The pod is over: it is not listed any more, its devices are freed with the next
        allocation."""
        self.pods.pop(pod, None)

    # --- records --------------------------------------------------------------------------------

    def _write_checkpoint(self) -> None:
        if self.checkpoint_fails:
            return
        endpoints = self.endpoints.values()
        body = {
            "Data": {
                "PodDeviceEntries": [
                    {
                        "PodUID": one.pod,
                        "ContainerName": one.container,
                        "ResourceName": one.resource,
                        "DeviceIDs": self._by_numa(one),
                        "AllocResp": base64.b64encode(one.answer).decode(),
                    }
                    for one in self.entries
                ],
                "RegisteredDevices": {
                    one.resource: sorted(self.allocatable(one.resource)) for one in endpoints
                },
            },
            "Checksum": 1,
        }
        temporary = self.checkpoint_path.with_name(f".{self.checkpoint_path.name}{os.getpid()}")
        temporary.write_text(json.dumps(body), encoding="utf-8")
        temporary.replace(self.checkpoint_path)

    def _by_numa(self, entry: Entry) -> Any:
        if self.flat_checkpoint:
            return list(entry.device_ids)
        endpoint = self.endpoints.get(entry.resource)
        found: dict[str, list[str]] = {}
        for one in entry.device_ids:
            node = endpoint.numa.get(one, -1) if endpoint else -1
            found.setdefault(str(node), []).append(one)
        return found

    def _read_checkpoint(self) -> None:
        if not self.checkpoint_path.exists():
            return
        data = json.loads(self.checkpoint_path.read_text(encoding="utf-8"))["Data"]
        self.entries = [
            Entry(
                one["PodUID"],
                one["ContainerName"],
                one["ResourceName"],
                tuple(read_device_ids(one["DeviceIDs"])),
                base64.b64decode(one["AllocResp"] or ""),
            )
            for one in data["PodDeviceEntries"]
        ]

    async def _list(self, request: Any, context: Any) -> Any:
        """Application and sidecar containers of active pods; listing frees what has ended."""
        self.lists += 1
        self._free_ended()
        listed = [self._resources_of(pod) for pod in self.pods.values()]
        if self.padding_bytes:
            padding = "p" * self.padding_bytes
            listed.append(
                self.wire.message_class("v1.PodResources")(name=padding, namespace="other")
            )
        return self.wire.message_class("v1.ListPodResourcesResponse")(pod_resources=listed)

    async def _get(self, request: Any, context: Any) -> Any:
        if not self.gets_pods:
            await context.abort(grpc.StatusCode.UNKNOWN, "PodResources API Get method disabled")
        for pod in self.pods.values():
            if (pod.namespace, pod.name) == (request.pod_namespace, request.pod_name):
                found = self._resources_of(pod)
                return self.wire.message_class("v1.GetPodResourcesResponse")(pod_resources=found)
        where = f"pod {request.pod_name} in namespace {request.pod_namespace}"
        return await context.abort(grpc.StatusCode.UNKNOWN, f"{where} not found")

    def _resources_of(self, pod: Pod) -> Any:
        device, listed = (
            self.wire.message_class(f"v1.{name}")
            for name in ("ContainerDevices", "ContainerResources")
        )
        containers = []
        for container in pod.containers:
            if container.init and not container.sidecar:
                continue
            entry = self._entry(pod.uid, container.name)
            ids = () if entry is None else entry.device_ids
            devices = [
                device(resource_name=entry.resource, device_ids=[one]) for one in ids if entry
            ]
            containers.append(listed(name=container.name, devices=devices))
        resources = self.wire.message_class("v1.PodResources")
        return resources(name=pod.name, namespace=pod.namespace, containers=containers)

    async def _get_pod(self, request: Any, context: Any) -> Any:
        pod = self.pods.get(request.podUID)
        if pod is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"pod {request.podUID} not found")
        assert pod is not None
        kind = {
            name: self.wire.message_class(f"v1alpha1.{name}")
            for name in (
                "GetPodResponse",
                "Pod",
                "ObjectMeta",
                "PodSpec",
                "Container",
                "ResourceRequirements",
                "Quantity",
                "OwnerReference",
            )
        }

        def containers(init: bool) -> list[Any]:
            return [
                kind["Container"](
                    name=one.name,
                    resources=kind["ResourceRequirements"](
                        limits={
                            name: kind["Quantity"](string=amount)
                            for name, amount in one.limits.items()
                        }
                    ),
                )
                for one in pod.containers
                if one.init is init
            ]

        message = kind["Pod"](
            metadata=kind["ObjectMeta"](
                name=pod.name,
                namespace=pod.namespace,
                uid=pod.uid,
                labels=dict(pod.labels),
                annotations=dict(pod.annotations),
            ),
            spec=kind["PodSpec"](containers=containers(False), initContainers=containers(True)),
        )
        return kind["GetPodResponse"](pod=message.SerializeToString())


def read_device_ids(value: Any) -> list[str]:
    """Read device IDs, grouped by NUMA node or flat."""
    return value if isinstance(value, list) else [one for ids in value.values() for one in ids]


def _told(error: BaseException) -> str:
    return str(error.details()) if isinstance(error, grpc.aio.AioRpcError) else str(error)


# --- by itself ----------------------------------------------------------------------------------


async def serve_lines(kubelet: FakeKubelet, resource: str) -> None:
    """A command per line: {"do": "admit", "pod": {"name", "namespace", "uid", "containers":
    [{"name", "gpus", "init", "sidecar", "limits"}]}}, {"do": "start_container", "uid",
    "container"}, {"do": "end", "uid"}, {"do": "restart"}, {"do": "devices"}, {"do": "stop"}.
    `admit` and `devices` take a "resource" in place of the one of the command line. The answer has
    `error`, or what was asked for."""
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        try:
            command = json.loads(line)
            answer = await _obey(kubelet, resource, command)
        except (AdmissionError, StartError) as error:
            answer = {"error": str(error)}
        except (KeyError, TypeError, ValueError) as error:
            answer = {"error": f"not a command: {error!r}"}
        print(json.dumps(answer), flush=True)
        if answer.get("stopped"):
            return
    await kubelet.stop()  # no call comes any more


async def _obey(kubelet: FakeKubelet, resource: str, command: Mapping[str, Any]) -> dict[str, Any]:
    do = command["do"]
    resource = command.get("resource", resource)
    if do == "admit":
        asked = dict(command["pod"])
        containers = [Container(**one) for one in asked.pop("containers", [{"name": "main"}])]
        pod = Pod(**asked, containers=tuple(containers))
        await kubelet.admit(pod, resource)
        ids = {one.name: kubelet.device_ids(pod.uid, one.name) for one in pod.containers}
        return {"uid": pod.uid, "device_ids": ids}
    if do == "start_container":
        answer = await kubelet.start_container(command["uid"], command["container"])
        return {"answer": dataclasses.asdict(answer)}
    if do == "end":
        kubelet.end(command["uid"])
        return {}
    if do == "restart":
        await kubelet.restart()
        return {}
    if do == "devices":
        endpoint = kubelet.endpoints.get(resource)
        return {"devices": endpoint.devices if endpoint else {}}
    if do == "stop":
        await kubelet.stop()
        return {"stopped": True}
    raise ValueError(f"do: {do!r}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.kit.fakes.kubelet", description=__doc__)
    parser.add_argument("--dir", type=Path, required=True, help="stands for /var/lib/kubelet")
    parser.add_argument("--resource", default="nvidia.com/gpu")
    parser.add_argument("--pods-api", action="store_true", help="serve the Pods API as well")
    parser.add_argument("--seed", type=int, default=0, help="of the choice of devices")
    options = parser.parse_args(arguments)
    kubelet = FakeKubelet(options.dir, seed=options.seed)
    kubelet.pods_api = options.pods_api

    async def run() -> None:
        await kubelet.start()
        print(json.dumps({"ready": True}), flush=True)
        await serve_lines(kubelet, options.resource)

    asyncio.run(run())
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The device plugin's server: one resource on one socket, registered with the kubelet while both
run.

The socket is served before it is registered, because the kubelet dials back within Register. A
kubelet that starts removes every socket in its directory, so a restart is detected in two ways (our
socket is gone, the kubelet's is new), at once by inotify and otherwise by a slow poll. The old
server then ends before a new one registers under a new name, so that the end of the old stream is
not taken for the new one's.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import grpc

from nodeagent.adapters.kubelet.plugin_server import (
    POLL_S,
    KubeletPluginServer,
    listen,
    method_handlers,
    remove_dead_sockets,
)
from nodeagent.adapters.kubelet.wire import PLUGIN, REGISTRATION, KubeletWire
from nodeagent.ports.kubelet import (
    NotOurs,
    PermanentError,
    PluginService,
    PreferenceAsk,
    RetryLater,
)
from nodeagent.ports.ledger import LedgerFull, LedgerLost
from sluicecommon.logs import error_text

log = logging.getLogger(__name__)

KUBELET_SOCKET: Final = "kubelet.sock"
REGISTER_DEADLINE_S: Final = 15.0
"""Seconds; the kubelet's own dial back takes up to 10."""
FIRST_PAUSE_S: Final = 0.02
LONGEST_PAUSE_S: Final = 2.0
LARGEST_REQUEST_BYTES: Final = 16 << 20

_STATUS: Final = {
    NotOurs: grpc.StatusCode.INVALID_ARGUMENT,
    RetryLater: grpc.StatusCode.UNAVAILABLE,
    PermanentError: grpc.StatusCode.FAILED_PRECONDITION,
    LedgerFull: grpc.StatusCode.RESOURCE_EXHAUSTED,
    LedgerLost: grpc.StatusCode.UNAVAILABLE,
    TimeoutError: grpc.StatusCode.DEADLINE_EXCEEDED,
}

_Identity = tuple[int, int] | None


class PluginServer(KubeletPluginServer):
    """An Endpoint that serves one resource."""

    def __init__(
        self,
        resource: str,
        directory: Path,
        wire: KubeletWire,
        service: PluginService,
        fatal: Callable[[BaseException], None],
    ) -> None:
        """`directory` is the kubelet's device-plugins."""
        super().__init__("kubelet", directory, fatal)
        self.resource = resource
        self.registrations_total = 0
        self.registered = False
        self.register_seconds = 0.0
        """Seconds from finding the kubelet's socket to the end of the last registration."""
        self._directory = directory
        self._wire = wire
        self._service = service
        self._names = itertools.count(1)
        self._server: Any = None
        self._endpoint: Path | None = None
        self._known: _Identity = None
        """The kubelet that this resource is registered with."""
        self._pause_s = FIRST_PAUSE_S

    # --- registration -----------------------------------------------------------------------

    async def _round(self) -> None:
        kubelet = self._kubelet()
        if kubelet is None:
            self._warn(f"no kubelet: {self._directory / KUBELET_SOCKET} does not exist")
            self.registered = False
            self._known, self._pause_s = None, FIRST_PAUSE_S
            await self._wait(POLL_S if self._watch is not None else LONGEST_PAUSE_S)
        elif kubelet == self._known and self._served():
            await self._wait(POLL_S)
        elif await self._register():
            self._known, self._pause_s = kubelet, FIRST_PAUSE_S
        else:
            self._known = None
            await asyncio.sleep(self._pause_s)
            self._pause_s = min(LONGEST_PAUSE_S, self._pause_s * 2)

    def _kubelet(self) -> _Identity:
        """Identity of the kubelet: the inode of its socket and its creation time."""
        try:
            status = os.stat(self._directory / KUBELET_SOCKET)
        except OSError:
            return None
        return (status.st_ino, status.st_ctime_ns)

    def _served(self) -> bool:
        return self._server is not None and self._endpoint is not None and self._endpoint.exists()

    async def _register(self) -> bool:
        self.registered = False
        began = time.monotonic()
        try:
            if not await self._accepts_connections():
                return False
            await self._stop_serving()
            await self._serve()
            assert self._endpoint is not None
            await self._send_registration(self._endpoint.name)
        except (OSError, RuntimeError) as error:
            self._warn(f"cannot serve in {self._directory}: {error}")
            return False
        except grpc.aio.AioRpcError as error:
            self._warn(f"the kubelet rejected {self.resource}: {error.details()}")
            return False
        self.registered = True
        self.registrations_total += 1
        self.register_seconds = time.monotonic() - began
        self._solved()
        log.info("kubelet: %s registered on %s", self.resource, self._endpoint.name)
        return True

    async def _accepts_connections(self) -> bool:
        """True if the socket accepts connections, which it does a little after it appears."""
        try:
            _, writer = await asyncio.open_unix_connection(str(self._directory / KUBELET_SOCKET))
        except OSError as error:
            self._warn(f"the kubelet refuses connections: {error.strerror}")
            return False
        writer.close()
        return True

    async def _send_registration(self, endpoint: str) -> None:
        request = self._wire.write_register(endpoint, self.resource)
        async with grpc.aio.insecure_channel(
            f"unix:{self._directory / KUBELET_SOCKET}",
            options=[("grpc.default_authority", "localhost")],
        ) as channel:
            call = channel.unary_unary(
                f"/{REGISTRATION}/Register",
                request_serializer=type(request).SerializeToString,
                response_deserializer=self._wire.plugin("Empty").FromString,
            )
            await call(request, timeout=REGISTER_DEADLINE_S)

    # --- serving ------------------------------------------------------------------------------

    async def _serve(self) -> None:
        remove_dead_sockets(self._directory.glob("sluice-*.sock"))
        plain = re.sub(r"[^a-z0-9]+", "-", self.resource.lower())
        path = self._directory / f"sluice-{plain}-{os.getpid()}-{next(self._names)}.sock"
        services = {PLUGIN: method_handlers(self._wire, PLUGIN, self._behaviours())}
        self._server = await listen(path, services, LARGEST_REQUEST_BYTES, mode=None)
        self._endpoint = path

    async def _stop_serving(self) -> None:
        server, self._server = self._server, None
        endpoint, self._endpoint = self._endpoint, None
        if server is not None:
            await server.stop(0)
        if endpoint is not None:
            with contextlib.suppress(OSError):
                endpoint.unlink()

    def _behaviours(self) -> dict[str, Any]:
        unary: dict[str, Callable[[Any], Awaitable[Any]]] = {
            "GetDevicePluginOptions": self._options,
            "GetPreferredAllocation": self._preferred,
            "Allocate": self._allocate,
            "PreStartContainer": self._pre_start,
        }
        return {"ListAndWatch": self._list_and_watch} | {
            name: _refusing(name, behaviour) for name, behaviour in unary.items()
        }

    async def _list_and_watch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        async for devices in self._service.watch():
            yield self._wire.write_devices(devices)

    async def _options(self, request: Any) -> Any:
        return self._wire.write_options()

    async def _preferred(self, request: Any) -> Any:
        answer = self._wire.plugin("ContainerPreferredAllocationResponse")
        return self._wire.plugin("PreferredAllocationResponse")(
            container_responses=[
                answer(
                    deviceIDs=self._service.prefer(
                        PreferenceAsk(
                            tuple(one.available_deviceIDs),
                            tuple(one.must_include_deviceIDs),
                            one.allocation_size,
                        )
                    )
                )
                for one in request.container_requests
            ]
        )

    async def _allocate(self, request: Any) -> Any:
        answers = await self._service.allocate(
            [tuple(one.devices_ids) for one in request.container_requests]
        )
        return self._wire.write_answers(answers)

    async def _pre_start(self, request: Any) -> Any:
        await self._service.pre_start(tuple(request.devices_ids))
        return self._wire.plugin("PreStartContainerResponse")()


def _refusing(name: str, behaviour: Callable[[Any], Awaitable[Any]]) -> Any:
    """Answer an expected error with its gRPC status; the kubelet shows the text to people."""

    async def answer(request: Any, context: Any) -> Any:
        try:
            return await behaviour(request)
        except tuple(_STATUS) as error:
            code = next(code for kind, code in _STATUS.items() if isinstance(error, kind))
            text = error_text(error)
            log.info("kubelet: %s refused: %s", name, text)
            await context.abort(code, text)

    return answer

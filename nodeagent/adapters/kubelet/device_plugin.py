"""The device plugin's server: one resource on one socket, registered with the kubelet for as long
as both live.

Serve first, then register: the kubelet dials back within Register. A kubelet that starts removes
every socket in its directory, so its coming is seen in two ways (our name is gone, its name is
new), at once by inotify and by a slow poll in any case; then the old server ends before a new one
with a new name registers, because the end of an old stream must not be taken for the new one's.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import re
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import grpc

from nodeagent.adapters.host.inotify import DirectoryWatch
from nodeagent.adapters.kubelet.wire import PLUGIN, REGISTRATION, KubeletWire
from nodeagent.ports.kubelet import (
    NotOurs,
    PermanentError,
    PluginService,
    PreferenceAsk,
    RetryLater,
)
from nodeagent.ports.ledger import LedgerFull, LedgerLost
from sluicecommon.background import BackgroundTasks

log = logging.getLogger(__name__)

KUBELET_SOCKET: Final = "kubelet.sock"
POLL_S: Final = 30.0
"""Backstop for a file system that tells nothing."""
REGISTER_DEADLINE_S: Final = 15.0
"""The kubelet's own dial back takes up to 10."""
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


class PluginServer:
    """Implements Endpoint."""

    def __init__(
        self,
        resource: str,
        directory: Path,
        wire: KubeletWire,
        service: PluginService,
        fatal: Callable[[BaseException], None],
    ) -> None:
        """`directory` is the kubelet's device-plugins."""
        self.resource = resource
        self.registrations_total = 0
        self.registered = False
        self.register_seconds = 0.0
        """From the kubelet's socket to its word, last time."""
        self._directory = directory
        self._wire = wire
        self._service = service
        self._background = BackgroundTasks(fatal)
        self._names = itertools.count(1)
        self._changed = asyncio.Event()
        self._server: Any = None
        self._endpoint: Path | None = None
        self._trouble = ""

    async def start(self) -> None:
        """Returns at once: a node may well be up before its kubelet."""
        self._background.spawn(self._keep_registered(), "device plugin server")

    async def close(self) -> None:
        await self._background.close()
        await self._stop_serving()

    # --- being registered ---------------------------------------------------------------------

    async def _keep_registered(self) -> None:
        pause_s = FIRST_PAUSE_S
        known: _Identity = None
        watch: DirectoryWatch | None = None
        try:
            while True:
                self._changed.clear()
                if watch is None or watch.lost:
                    watch = self._watch(watch)
                kubelet = self._kubelet()
                if kubelet is None:
                    self._say(f"no kubelet: {self._directory / KUBELET_SOCKET} is not there")
                    self.registered = False
                    known, pause_s = None, FIRST_PAUSE_S
                    await self._wait(POLL_S if watch is not None else LONGEST_PAUSE_S)
                elif kubelet == known and self._served():
                    await self._wait(POLL_S)
                elif await self._register():
                    known, pause_s = kubelet, FIRST_PAUSE_S
                else:
                    known = None
                    await asyncio.sleep(pause_s)
                    pause_s = min(LONGEST_PAUSE_S, pause_s * 2)
        finally:
            if watch is not None:
                watch.close()

    async def _wait(self, longest_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(longest_s):
                await self._changed.wait()

    def _watch(self, old: DirectoryWatch | None) -> DirectoryWatch | None:
        if old is not None:
            old.close()
        try:
            return DirectoryWatch(self._directory, self._changed.set)
        except OSError as error:
            self._say(f"cannot watch {self._directory}: {error.strerror}")
            return None

    def _kubelet(self) -> _Identity:
        """Which kubelet this is: the inode of its socket and when that was made."""
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
            if not await self._answers():
                return False
            await self._stop_serving()
            await self._serve()
            assert self._endpoint is not None
            await self._tell(self._endpoint.name)
        except (OSError, RuntimeError) as error:
            self._say(f"cannot serve in {self._directory}: {error}")
            return False
        except grpc.aio.AioRpcError as error:
            self._say(f"the kubelet refuses {self.resource}: {error.details()}")
            return False
        self.registered = True
        self.registrations_total += 1
        self.register_seconds = time.monotonic() - began
        self._trouble = ""
        log.info("kubelet: %s registered on %s", self.resource, self._endpoint.name)
        return True

    async def _answers(self) -> bool:
        """Whether somebody listens: a socket has its name before it takes connections."""
        try:
            _, writer = await asyncio.open_unix_connection(str(self._directory / KUBELET_SOCKET))
        except OSError as error:
            self._say(f"the kubelet does not answer: {error.strerror}")
            return False
        writer.close()
        return True

    async def _tell(self, endpoint: str) -> None:
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

    def _say(self, trouble: str) -> None:
        """Once for each trouble."""
        if trouble != self._trouble:
            log.warning("kubelet: %s", trouble)
        self._trouble = trouble

    # --- serving ------------------------------------------------------------------------------

    async def _serve(self) -> None:
        self._remove_leftovers()
        plain = re.sub(r"[^a-z0-9]+", "-", self.resource.lower())
        path = self._directory / f"sluice-{plain}-{os.getpid()}-{next(self._names)}.sock"
        server = grpc.aio.server(
            options=[("grpc.max_receive_message_length", LARGEST_REQUEST_BYTES)]
        )
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(PLUGIN, self._handlers()),)
        )
        if server.add_insecure_port(f"unix:{path}") == 0:
            raise OSError(f"cannot listen on {path}")
        await server.start()
        self._server, self._endpoint = server, path

    def _remove_leftovers(self) -> None:
        """Sockets of a plugin that was killed: nobody listens on them."""
        for path in self._directory.glob("sluice-*.sock"):
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
                if probe.connect_ex(str(path)) != 0:
                    path.unlink()

    async def _stop_serving(self) -> None:
        server, self._server = self._server, None
        endpoint, self._endpoint = self._endpoint, None
        if server is not None:
            await server.stop(0)
        if endpoint is not None:
            with contextlib.suppress(OSError):
                endpoint.unlink()

    def _handlers(self) -> dict[str, Any]:
        unary: dict[str, Any] = {
            "GetDevicePluginOptions": self._options,
            "GetPreferredAllocation": self._preferred,
            "Allocate": self._allocate,
            "PreStartContainer": self._pre_start,
        }
        handlers = {}
        for name, (request, response, streams) in self._wire.service_methods(PLUGIN).items():
            coding = {
                "request_deserializer": request.FromString,
                "response_serializer": response.SerializeToString,
            }
            if streams:
                handlers[name] = grpc.unary_stream_rpc_method_handler(
                    self._list_and_watch, **coding
                )
            else:
                handlers[name] = grpc.unary_unary_rpc_method_handler(
                    _refusing(name, unary[name]), **coding
                )
        return handlers

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
    """What goes wrong in an expected way is told to the kubelet, which shows it to people."""

    async def answer(request: Any, context: Any) -> Any:
        try:
            return await behaviour(request)
        except tuple(_STATUS) as error:
            code = next(code for kind, code in _STATUS.items() if isinstance(error, kind))
            text = str(error) or "no answer in time"
            log.info("kubelet: %s refused: %s", name, text)
            await context.abort(code, text)

    return answer

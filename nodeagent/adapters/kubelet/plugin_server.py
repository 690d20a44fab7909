"""The common part of the device plugin and the DRA driver: gRPC servers on Unix sockets in
directories of the kubelet, which removes sockets and may restart at any time.

A round checks whether the sockets are still served, and serves them again if not. Rounds follow
changes in the directory at once (inotify), and otherwise a slow poll.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import grpc

from nodeagent.adapters.host.inotify import DirectoryWatch
from sluicecommon.background import BackgroundTasks

log = logging.getLogger(__name__)

POLL_S: Final = 30.0
"""Backstop for a file system that reports no changes."""


class Messages(Protocol):
    """The protobuf classes of an API of the kubelet."""

    def service_methods(self, name: str) -> Mapping[str, tuple[Any, Any, bool]]:
        """Request class, response class and whether it streams, by method of a service."""


class KubeletPluginServer:
    """An Endpoint; subclasses serve in `_round` and end it in `_stop_serving`."""

    def __init__(self, name: str, directory: Path, fatal: Callable[[BaseException], None]) -> None:
        """`name` stands at the start of log lines; `directory` is watched for changes."""
        self._name = name
        self._watched = directory
        self._background = BackgroundTasks(fatal)
        self._changed = asyncio.Event()
        self._watch: DirectoryWatch | None = None
        self._problem = ""

    async def start(self) -> None:
        """Returns at once, because a node's kubelet may start later."""
        self._background.spawn(self._keep_serving(), f"{self._name}: server")

    async def close(self) -> None:
        await self._background.close()
        await self._stop_serving()

    async def _round(self) -> None:
        """Serve if that is needed, then wait until the next look is due."""
        raise NotImplementedError

    async def _stop_serving(self) -> None:
        raise NotImplementedError

    def _open_watch(self) -> DirectoryWatch:
        """Raises OSError."""
        return DirectoryWatch(self._watched, self._changed.set)

    async def _keep_serving(self) -> None:
        try:
            while True:
                self._changed.clear()
                if self._watch is None or self._watch.lost:
                    self._renew_watch()
                await self._round()
        finally:
            if self._watch is not None:
                self._watch.close()

    def _renew_watch(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        try:
            self._watch = self._open_watch()
        except OSError as error:
            self._warn(f"cannot watch {self._watched}: {error.strerror}")

    async def _wait(self, longest_s: float) -> None:
        """Wait until the directory changes, but not longer than `longest_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(longest_s):
                await self._changed.wait()

    def _warn(self, problem: str) -> None:
        """Log a problem, once until it changes or `_solved` is called."""
        if problem != self._problem:
            log.warning("%s: %s", self._name, problem)
        self._problem = problem

    def _solved(self) -> None:
        self._problem = ""


def method_handlers(
    messages: Messages, service: str, behaviours: Mapping[str, Any]
) -> dict[str, Any]:
    """gRPC handlers of a service by the names of its methods."""
    handlers = {}
    for method, (request, response, streams) in messages.service_methods(service).items():
        make = (
            grpc.unary_stream_rpc_method_handler if streams else grpc.unary_unary_rpc_method_handler
        )
        handlers[method] = make(
            behaviours[method],
            request_deserializer=request.FromString,
            response_serializer=response.SerializeToString,
        )
    return handlers


async def listen(
    path: Path, services: Mapping[str, dict[str, Any]], max_request_bytes: int, mode: int | None
) -> Any:
    """A started gRPC server on a Unix socket with this mode. Raises OSError, RuntimeError."""
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", max_request_bytes)])
    for name, handlers in services.items():
        handler = grpc.method_handlers_generic_handler(name, handlers)
        server.add_generic_rpc_handlers((handler,))
    if server.add_insecure_port(f"unix:{path}") == 0:
        raise OSError(f"cannot listen on {path}")
    if mode is not None:
        os.chmod(path, mode)
    await server.start()
    return server


def remove_dead_sockets(paths: Iterable[Path]) -> None:
    """Remove sockets of a daemon that was killed: those that take no connection."""
    for path in paths:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(str(path)) != 0:
                path.unlink()

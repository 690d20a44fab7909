"""The driver's server for the kubelet: two sockets, one by which it is found and one that is asked.

The kubelet watches its plugins_registry and calls whatever socket appears there; nothing has to be
told to it. Both sockets have names of their own for each life of the daemon, so one that starts
while another ends is a second plugin to the kubelet and not the same one changed: it takes the
newest that answers. First the service, then the socket in the registry; at the end the other way
round. What a killed daemon left is removed once nobody listens on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, Final

import grpc

from nodeagent.adapters.dra.wire import (
    HEALTH_VERSIONS,
    REGISTRATION,
    VERSIONS,
    DraWire,
    Unreadable,
    health_service,
    service,
)
from nodeagent.adapters.host.inotify import DirectoryWatch
from nodeagent.ports.dra.claims import (
    DRIVER,
    ClaimRef,
    ClaimService,
    ClaimUid,
    NotPrepared,
    PreparedDevice,
)
from nodeagent.ports.ledger import LedgerLost
from sluicecommon.background import BackgroundTasks

log = logging.getLogger(__name__)

REGISTRY: Final = "plugins_registry"
PLUGINS: Final = "plugins"
POLL_S: Final = 30.0
"""Backstop for a file system that tells nothing."""
PAUSE_S: Final = 2.0
"""Between two tries to serve where it cannot be done now."""
HEALTH_AGAIN_S: Final = 10.0
"""The kubelet holds what it does not hear anew for unknown."""
LARGEST_REQUEST_BYTES: Final = 4 << 20


class DraPlugin:
    """Implements Endpoint."""

    def __init__(
        self,
        kubelet: Path,
        wire: DraWire,
        manager: ClaimService,
        fatal: Callable[[BaseException], None],
    ) -> None:
        """`kubelet`: its root directory."""
        life = f"{os.getpid()}-{secrets.token_hex(4)}"
        self.registry = kubelet / REGISTRY
        self.directory = kubelet / PLUGINS / DRIVER
        self.endpoint = self.directory / f"dra-{life}.sock"
        self.register = self.registry / f"{DRIVER}-{life}-reg.sock"
        self.registered = False
        self.registrations_total = 0
        self.refusal = ""
        """Why the kubelet did not take it."""
        self._wire = wire
        self._manager = manager
        self._background = BackgroundTasks(fatal)
        self._changed = asyncio.Event()
        self._servers: list[Any] = []
        self._trouble = ""

    async def start(self) -> None:
        """Returns at once: a node may well be up before its kubelet."""
        self._background.spawn(self._keep_serving(), "DRA plugin server")

    async def close(self) -> None:
        await self._background.close()
        await self._stop_serving()

    # --- being found --------------------------------------------------------------------------

    async def _keep_serving(self) -> None:
        watch: DirectoryWatch | None = None
        try:
            while True:
                self._changed.clear()
                if watch is None or watch.lost:
                    if watch is not None:
                        watch.close()
                    watch = self._watch()
                if self._served():
                    await self._wait(POLL_S)
                    continue
                try:
                    await self._stop_serving()
                    await self._serve()
                    self._trouble = ""
                except (OSError, RuntimeError) as error:
                    self._say(f"cannot serve in {self.registry}: {error}")
                    await asyncio.sleep(PAUSE_S)
        finally:
            if watch is not None:
                watch.close()

    async def _wait(self, longest_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(longest_s):
                await self._changed.wait()

    def _watch(self) -> DirectoryWatch | None:
        try:
            self.registry.mkdir(mode=0o750, parents=True, exist_ok=True)
            return DirectoryWatch(self.registry, self._changed.set)
        except OSError as error:
            self._say(f"cannot watch {self.registry}: {error.strerror}")
            return None

    def _served(self) -> bool:
        return bool(self._servers) and self.register.exists() and self.endpoint.exists()

    def _say(self, trouble: str) -> None:
        """Once for each trouble."""
        if trouble != self._trouble:
            log.warning("dra: %s", trouble)
        self._trouble = trouble

    # --- serving ------------------------------------------------------------------------------

    async def _serve(self) -> None:
        self.directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        methods = self._methods()
        plugin = await _listening(self.endpoint, methods)
        self._servers.append(plugin)
        self._servers.append(await _listening(self.register, {REGISTRATION: self._registration()}))
        self._remove_leftovers()

    def _remove_leftovers(self) -> None:
        """Sockets of a daemon that was killed: nobody listens on them."""
        ours = {self.endpoint, self.register}
        for path in (
            *self.registry.glob(f"{DRIVER}-*-reg.sock"),
            *self.directory.glob("dra-*.sock"),
        ):
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
                if path not in ours and probe.connect_ex(str(path)) != 0:
                    path.unlink()

    async def _stop_serving(self) -> None:
        """The registry first: then the kubelet asks nobody who is ending."""
        servers, self._servers = self._servers, []
        self.registered = False
        for path in (self.register, self.endpoint):
            with contextlib.suppress(OSError):
                path.unlink()
        for server in reversed(servers):
            await server.stop(0)

    def _registration(self) -> Any:
        async def info(request: Any, context: Any) -> Any:
            return self._wire.write_info(DRIVER, str(self.endpoint))

        async def status(request: Any, context: Any) -> Any:
            self.registered = bool(request.plugin_registered)
            self.refusal = "" if self.registered else request.error[:500]
            if self.registered:
                self.registrations_total += 1
                log.info("dra: registered with the kubelet as %s", self.endpoint.name)
            else:
                log.error("dra: the kubelet refuses %s: %s", DRIVER, self.refusal)
            return self._wire.message_class("pluginregistration.RegistrationStatusResponse")()

        return self._handlers(REGISTRATION, {"GetInfo": info, "NotifyRegistrationStatus": status})

    def _methods(self) -> dict[str, Any]:
        found = {
            service(version): self._handlers(
                service(version),
                {
                    "NodePrepareResources": self._prepare(version),
                    "NodeUnprepareResources": self._unprepare(version),
                },
            )
            for version in VERSIONS
        }
        for version in HEALTH_VERSIONS:
            name = health_service(version)
            found[name] = self._handlers(name, {"NodeWatchResources": self._health(version)})
        return found

    def _handlers(self, name: str, behaviours: dict[str, Any]) -> dict[str, Any]:
        handlers = {}
        for method, (request, response, streams) in self._wire.service_methods(name).items():
            make = (
                grpc.unary_stream_rpc_method_handler
                if streams
                else grpc.unary_unary_rpc_method_handler
            )
            handlers[method] = make(
                behaviours[method],
                request_deserializer=request.FromString,
                response_serializer=response.SerializeToString,
            )
        return handlers

    def _prepare(self, version: str) -> Any:
        async def behaviour(request: Any, context: Any) -> Any:
            claims = await self._claims(request, context)
            found = await asyncio.gather(*map(self._prepared, claims))
            answers = dict(zip([one.uid for one in claims], found, strict=True))
            return self._wire.write_prepared(version, answers)

        return behaviour

    async def _prepared(self, claim: ClaimRef) -> Sequence[PreparedDevice] | str:
        try:
            return await self._manager.prepare(claim)
        except (NotPrepared, LedgerLost) as error:
            log.info("dra: claim %s is not prepared: %s", claim, error)
            return str(error) or "not prepared"

    def _unprepare(self, version: str) -> Any:
        async def behaviour(request: Any, context: Any) -> Any:
            claims = await self._claims(request, context)
            answers: dict[ClaimUid, str] = {}
            for claim in claims:
                try:
                    await self._manager.unprepare(claim)
                    answers[claim.uid] = ""
                except (NotPrepared, LedgerLost) as error:
                    log.warning("dra: claim %s is not given back: %s", claim, error)
                    answers[claim.uid] = str(error) or "not given back"
            return self._wire.write_unprepared(version, answers)

        return behaviour

    async def _claims(self, request: Any, context: Any) -> list[ClaimRef]:
        try:
            return self._wire.read_claims(request)
        except Unreadable as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            raise

    def _health(self, version: str) -> Any:
        async def behaviour(request: Any, context: Any) -> AsyncIterator[Any]:
            while True:
                yield self._wire.write_health(version, self._manager.health(), HEALTH_AGAIN_S)
                await self._manager.health_changed(HEALTH_AGAIN_S)

        return behaviour


async def _listening(path: Path, services: dict[str, Any]) -> Any:
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", LARGEST_REQUEST_BYTES)])
    for name, handlers in services.items():
        handler = grpc.method_handlers_generic_handler(name, handlers)
        server.add_generic_rpc_handlers((handler,))
    if server.add_insecure_port(f"unix:{path}") == 0:
        raise OSError(f"cannot listen on {path}")
    os.chmod(path, 0o600)
    await server.start()
    return server

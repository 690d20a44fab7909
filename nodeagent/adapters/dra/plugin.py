"""The DRA driver's server for the kubelet: one socket for registration and one for its calls.

The kubelet watches its plugins_registry and calls every socket that appears there, so nothing has
to be sent to it. Both sockets get new names at each start of the daemon, so that a daemon which
starts while another ends is a second plugin to the kubelet, which uses the newest that answers. The
service is served before its registration socket, and stopped after it. Sockets that a killed daemon
left are removed, because they refuse connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
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
from nodeagent.adapters.kubelet.plugin_server import (
    POLL_S,
    KubeletPluginServer,
    listen,
    method_handlers,
    remove_dead_sockets,
)
from nodeagent.ports.dra.claims import (
    DRIVER,
    ClaimRef,
    ClaimService,
    ClaimUid,
    NotPrepared,
    PreparedDevice,
)
from nodeagent.ports.ledger import LedgerLost

log = logging.getLogger(__name__)

REGISTRY: Final = "plugins_registry"
PLUGINS: Final = "plugins"
PAUSE_S: Final = 2.0
"""Seconds between two attempts to serve."""
HEALTH_AGAIN_S: Final = 10.0
"""Seconds between health messages; the kubelet treats devices without a recent one as unknown."""
LARGEST_REQUEST_BYTES: Final = 4 << 20


class DraPlugin(KubeletPluginServer):
    """An Endpoint that serves the driver's claims."""

    def __init__(
        self,
        kubelet: Path,
        wire: DraWire,
        manager: ClaimService,
        fatal: Callable[[BaseException], None],
    ) -> None:
        """`kubelet` is the kubelet's root directory."""
        super().__init__("dra", kubelet / REGISTRY, fatal)
        life = f"{os.getpid()}-{secrets.token_hex(4)}"
        self.registry = kubelet / REGISTRY
        self.directory = kubelet / PLUGINS / DRIVER
        self.endpoint = self.directory / f"dra-{life}.sock"
        self.register = self.registry / f"{DRIVER}-{life}-reg.sock"
        self.registered = False
        self.registrations_total = 0
        self.refusal = ""
        """The kubelet's reason for rejecting the registration; empty if it did not."""
        self._wire = wire
        self._manager = manager
        self._servers: list[Any] = []

    # --- registration -------------------------------------------------------------------------

    async def _round(self) -> None:
        if self._served():
            await self._wait(POLL_S)
            return
        try:
            await self._stop_serving()
            await self._serve()
            self._solved()
        except (OSError, RuntimeError) as error:
            self._warn(f"cannot serve in {self.registry}: {error}")
            await asyncio.sleep(PAUSE_S)

    def _open_watch(self) -> DirectoryWatch:
        self.registry.mkdir(mode=0o750, parents=True, exist_ok=True)
        return super()._open_watch()

    def _served(self) -> bool:
        return bool(self._servers) and self.register.exists() and self.endpoint.exists()

    # --- serving ------------------------------------------------------------------------------

    async def _serve(self) -> None:
        self.directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        for path, services in (
            (self.endpoint, self._methods()),
            (self.register, {REGISTRATION: self._registration()}),
        ):
            self._servers.append(await listen(path, services, LARGEST_REQUEST_BYTES, mode=0o600))
        found = {
            *self.registry.glob(f"{DRIVER}-*-reg.sock"),
            *self.directory.glob("dra-*.sock"),
        }
        remove_dead_sockets(found - {self.endpoint, self.register})

    async def _stop_serving(self) -> None:
        """Remove the registration socket first, so that the kubelet sends no call to a server that
        is stopping."""
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
                log.error("dra: the kubelet rejected %s: %s", DRIVER, self.refusal)
            return self._wire.message_class("pluginregistration.RegistrationStatusResponse")()

        return method_handlers(
            self._wire, REGISTRATION, {"GetInfo": info, "NotifyRegistrationStatus": status}
        )

    def _methods(self) -> dict[str, Any]:
        found = {
            service(version): method_handlers(
                self._wire,
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
            found[name] = method_handlers(
                self._wire, name, {"NodeWatchResources": self._health(version)}
            )
        return found

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
            log.info("dra: claim %s not prepared: %s", claim, error)
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
                    log.warning("dra: claim %s not unprepared: %s", claim, error)
                    answers[claim.uid] = str(error) or "not unprepared"
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

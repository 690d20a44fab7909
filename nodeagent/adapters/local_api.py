"""The local gRPC API on a Unix socket, with callers identified by the kernel.

grpc-python cannot tell who is at the other end of a Unix socket. So we accept on the public
socket ourselves, read SO_PEERCRED and SO_PEERPIDFD, and relay the bytes to gRPC's own socket in
a 0700 directory, from a socket bound to a name of its own in there. That name is what
`context.peer()` shows, and it leads back to the credentials. Nobody else can reach the private
socket, and a name is used once.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import logging
import os
import socket
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import grpc

from nodeagent.adapters import mig_wire
from nodeagent.adapters.pidfd import peer_of
from nodeagent.adapters.wire import SERVICE, Wire
from nodeagent.mig_ports import MigService
from nodeagent.ports import (
    Clock,
    Finding,
    Granted,
    LedgerFull,
    NodeService,
    Peer,
    RefusalKind,
    Refused,
)

log = logging.getLogger(__name__)

MOST_CONNECTIONS: Final = 512
MOST_PER_UID: Final = 256
LARGEST_REQUEST_BYTES: Final = 64 << 10
CHUNK_BYTES: Final = 64 << 10
WATCH_INTERVALS_S: Final = (0.2, 60.0)

_STATUS: Final = {
    RefusalKind.INVALID: grpc.StatusCode.INVALID_ARGUMENT,
    RefusalKind.EXHAUSTED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    RefusalKind.UNAVAILABLE: grpc.StatusCode.FAILED_PRECONDITION,
    RefusalKind.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    RefusalKind.DENIED: grpc.StatusCode.PERMISSION_DENIED,
}


class LocalApi:
    def __init__(
        self,
        runtime_dir: Path,
        wire: Wire,
        service: NodeService,
        clock: Clock,
        doctor: Callable[[], list[Finding]],
        mig: MigService,
    ) -> None:
        self._public = runtime_dir / "sluice.sock"
        self._private_dir = runtime_dir / "api"
        self._private = self._private_dir / "grpc.sock"
        self._wire = wire
        self._service = service
        self._clock = clock
        self._doctor = doctor
        self._mig = mig
        self._peers: dict[str, Peer] = {}
        self._per_uid: Counter[int] = Counter()
        self._names = itertools.count(1)
        self._relays: set[asyncio.Task[None]] = set()
        self._grpc: Any = None
        self._listener: asyncio.Server | None = None

    async def start(self) -> None:
        """Raises OSError when a socket cannot be made."""
        self._private_dir.mkdir(mode=0o700, exist_ok=True)
        os.chmod(self._private_dir, 0o700)
        for old in self._private_dir.iterdir():
            old.unlink()
        self._grpc = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", LARGEST_REQUEST_BYTES),
                ("grpc.max_concurrent_streams", 100),
            ]
        )
        self._grpc.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, self._handlers()),)
        )
        self._grpc.add_insecure_port(f"unix:{self._private}")
        await self._grpc.start()
        with contextlib.suppress(FileNotFoundError):
            self._public.unlink()
        self._listener = await asyncio.start_unix_server(
            self._accepted, str(self._public), limit=CHUNK_BYTES
        )
        os.chmod(self._public, 0o666)

    async def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        for relay in list(self._relays):
            relay.cancel()
        if self._grpc is not None:
            await self._grpc.stop(0)
        with contextlib.suppress(FileNotFoundError):
            self._public.unlink()

    # --- the relay ---

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._relays.add(task)
        try:
            connection = writer.get_extra_info("socket")
            try:
                handle = peer_of(connection)
            except OSError as error:
                log.debug("a caller without credentials: %s", error)
                return
            uid = handle.process.uid
            try:
                if len(self._peers) < MOST_CONNECTIONS and self._per_uid[uid] < MOST_PER_UID:
                    await self._relay(Peer(handle), reader, writer)
            finally:
                handle.close()
        finally:
            self._relays.discard(task)
            writer.close()

    async def _relay(
        self, peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        name = self._private_dir / f"c{next(self._names)}"
        inner = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._peers[f"unix:{name}"] = peer
        self._per_uid[peer.uid] += 1
        try:
            inner.setblocking(False)
            inner.bind(str(name))
            await asyncio.get_running_loop().sock_connect(inner, str(self._private))
            name.unlink()  # the name is known to both ends now
            in_reader, in_writer = await asyncio.open_connection(sock=inner, limit=CHUNK_BYTES)
            try:
                await asyncio.gather(_copy(reader, in_writer), _copy(in_reader, writer))
            finally:
                in_writer.close()
        except OSError as error:
            log.debug("relay for uid %d: %s", peer.uid, error)
        finally:
            inner.close()
            del self._peers[f"unix:{name}"]
            self._per_uid[peer.uid] -= 1

    # --- the service ---

    def _handlers(self) -> dict[str, Any]:
        unary: dict[str, Callable[[Peer, Any], Any]] = {
            "ListGrants": self._list,
            "ResizeGrant": self._resize,
            "PauseGrant": self._pause,
            "ResumeGrant": self._resume,
            "ReleaseGrant": self._release,
            "GetNodeInfo": self._info,
            "Doctor": self._report,
            "ListContained": self._contained,
            "LetGo": self._let_go,
            "ShowMig": self._show_mig,
            "SetMig": self._set_mig,
        }
        streams: dict[str, Callable[[Peer, Any], AsyncGenerator[Any, None]]] = {
            "CreateGrant": self._create,
            "Watch": self._watch,
            "WatchEvents": self._events,
            "Trace": self._trace,
        }
        handlers = {}
        for name, (request, response, _stream) in self._wire.methods().items():
            kind, call = (
                (grpc.unary_stream_rpc_method_handler, self._streaming(streams[name]))
                if name in streams
                else (grpc.unary_unary_rpc_method_handler, self._answering(unary[name]))
            )
            handlers[name] = kind(
                call,
                request_deserializer=request.FromString,
                response_serializer=response.SerializeToString,
            )
        return handlers

    def _answering(self, call: Callable[[Peer, Any], Any]) -> Callable[[Any, Any], Awaitable[Any]]:
        async def answer(request: Any, context: Any) -> Any:
            try:
                response = call(self._peer(context), request)
                return await response if inspect.isawaitable(response) else response
            except Refused as refused:
                await context.abort(_STATUS[refused.kind], refused.reason)
            except LedgerFull as error:
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))

        return answer

    def _streaming(
        self, call: Callable[[Peer, Any], AsyncGenerator[Any, None]]
    ) -> Callable[[Any, Any], AsyncGenerator[Any, None]]:
        async def stream(request: Any, context: Any) -> AsyncGenerator[Any, None]:
            try:
                async with contextlib.aclosing(call(self._peer(context), request)) as messages:
                    async for message in messages:
                        yield message
            except Refused as refused:
                await context.abort(_STATUS[refused.kind], refused.reason)
            except LedgerFull as error:
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))

        return stream

    def _peer(self, context: Any) -> Peer:
        peer = self._peers.get(context.peer())
        if peer is None:
            raise Refused(RefusalKind.DENIED, "the caller is not known")
        return peer

    async def _create(self, peer: Peer, request: Any) -> AsyncGenerator[Any, None]:
        update = self._wire.message("CreateGrantUpdate")
        ask = self._wire.read_grant_ask(request)
        async with contextlib.aclosing(self._service.create_grant(peer, ask)) as progress:
            async for step in progress:
                if isinstance(step, Granted):
                    yield update(granted=self._wire.write_grant(step.view))
                else:
                    yield update(waiting=self._wire.write_waiting(step))

    async def _watch(self, peer: Peer, request: Any) -> AsyncGenerator[Any, None]:
        low, high = WATCH_INTERVALS_S
        interval_s = min(high, max(low, request.interval_seconds or 1.0))
        while True:
            yield self._snapshot(peer)
            await asyncio.sleep(interval_s)

    async def _events(self, peer: Peer, request: Any) -> AsyncGenerator[Any, None]:
        events = self._service.events(peer, request.after, request.follow)
        async with contextlib.aclosing(events) as found:
            async for event in found:
                yield self._wire.write_event(event)

    async def _trace(self, peer: Peer, request: Any) -> AsyncGenerator[Any, None]:
        interval_s = request.interval_seconds or 1.0
        traced = self._service.trace(peer, request.pid, interval_s)
        async with contextlib.aclosing(traced) as views:
            async for view in views:
                yield self._wire.write_trace(view)

    def _snapshot(self, peer: Peer) -> Any:
        return self._wire.write_snapshot(self._service.node_view(peer), self._clock.unix_s())

    def _list(self, peer: Peer, request: Any) -> Any:
        grants = [self._wire.write_grant(view) for view in self._service.list_grants(peer)]
        return self._wire.message("ListGrantsResponse")(grants=grants)

    def _resize(self, peer: Peer, request: Any) -> Any:
        ask = self._wire.read_resize_ask(request)
        return self._wire.write_grant(self._service.resize_grant(peer, request.grant, ask))

    def _pause(self, peer: Peer, request: Any) -> Any:
        return self._wire.write_grant(self._service.pause_grant(peer, request.grant, True))

    def _resume(self, peer: Peer, request: Any) -> Any:
        return self._wire.write_grant(self._service.pause_grant(peer, request.grant, False))

    def _release(self, peer: Peer, request: Any) -> Any:
        return self._wire.write_grant(self._service.release_grant(peer, request.grant))

    def _contained(self, peer: Peer, request: Any) -> Any:
        found = [self._wire.write_contained(view) for view in self._service.contained(peer)]
        return self._wire.message("ListContainedResponse")(contained=found)

    def _let_go(self, peer: Peer, request: Any) -> Any:
        views = self._service.let_go(peer, tuple(request.numbers), request.all)
        found = [self._wire.write_contained(view) for view in views]
        return self._wire.message("LetGoResponse")(let_go=found)

    def _info(self, peer: Peer, request: Any) -> Any:
        return self._snapshot(peer)

    async def _show_mig(self, peer: Peer, request: Any) -> Any:
        views = await self._mig.show(peer, request.gpu)
        return mig_wire.write_views(self._wire, views)

    async def _set_mig(self, peer: Peer, request: Any) -> Any:
        answer = await self._mig.set(peer, mig_wire.read_ask(request))
        return mig_wire.write_answer(self._wire, answer)

    def _report(self, peer: Peer, request: Any) -> Any:
        finding = self._wire.message("Finding")
        found = [
            finding(topic=f.topic, level=f.level, what=f.what, remedy=f.remedy)
            for f in self._doctor()
        ]
        return self._wire.message("DoctorReport")(findings=found)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()

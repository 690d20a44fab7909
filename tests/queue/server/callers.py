"""The real controller over TLS, and callers of every role, each with a certificate of its own."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from queuecontroller.server.api.wire import NODES, QUEUES, Wire, find_descriptors
from queuecontroller.state.access import Caller, RoleLists
from tests.kit.queue.controller import QueueController
from tests.queue.server.certificates import Authority, Pair

WIRE = Wire(find_descriptors())
SERVICES = {"QueueNodes": NODES, "Queues": QUEUES}


def message(kind_: str, /, **fields: Any) -> Any:
    return getattr(WIRE, kind_)(**fields)


@dataclass
class Party:
    """One caller: its certificate, and what the table may expect of it."""

    name: str
    caller: Caller
    channel: Any

    def call(self, method: str, request: Any, timeout_s: float = 30) -> tuple[str, Any]:
        """(status, answer or details); of a stream its first message."""
        service, _, name = method.partition("/")
        kind = WIRE.methods(SERVICES[service])[name]
        make = self.channel.unary_stream if kind.streams else self.channel.unary_unary
        raw = isinstance(request, bytes)
        call = make(
            f"/{SERVICES[service]}/{name}",
            request_serializer=(lambda one: one) if raw else kind.request.SerializeToString,
            response_deserializer=kind.response.FromString,
        )
        try:
            if not kind.streams:
                return "OK", call(request, timeout=timeout_s)
            stream = call(request, timeout=timeout_s)
            try:
                return "OK", next(stream, None)
            finally:
                stream.cancel()
        except grpc.RpcError as error:
            return error.code().name, error.details() or ""

    def apply(self, *documents: dict[str, Any]) -> tuple[str, Any]:
        texts = [json.dumps(one) for one in documents]
        return self.call("Queues/Apply", message("ApplyRequest", objects=texts))


@dataclass
class Callers:
    controller: QueueController
    authority: Authority
    parties: dict[str, Party] = field(default_factory=dict)

    def party(self, name: str, *uris: str) -> Party:
        """A caller with `user:ann` and the like in its certificate; without any it has no role."""
        if name not in self.parties:
            given = [f"sluice:{one}" for one in uris]
            names = ",".join([f"DNS:{name}", *(f"URI:{one}" for one in given)])
            pair = self.authority.issue(name, names)
            caller = RoleLists().of_certificate(name, [name], given)
            self.parties[name] = Party(name, caller, self.channel(pair))
        return self.parties[name]

    def channel(self, pair: Pair) -> Any:
        credentials = grpc.ssl_channel_credentials(
            self.authority.ca.read_bytes(), pair.key.read_bytes(), pair.certificate.read_bytes()
        )
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
        return grpc.secure_channel(self.controller.tcp_address, credentials, options=options)


@contextlib.contextmanager
def callers(directory: Path, *settings: str) -> Iterator[Callers]:
    authority = Authority(directory / "pki")
    server = authority.issue("queue", "DNS:localhost")
    controller = QueueController(
        directory / "queue",
        host="localhost",
        both=True,
        settings=[
            *(f"tls.certificate={server.certificate}", f"tls.key={server.key}"),
            *(f"tls.client_ca={authority.ca}", *settings),
        ],
    )
    made = Callers(controller, authority)
    try:
        controller.start()
        yield made
    finally:
        for one in made.parties.values():
            one.channel.close()
        controller.stop()

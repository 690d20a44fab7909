"""The users' end of the service: what `sluice-queue` verbs and tests speak through."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc

from queuecontroller.server.api.wire import QUEUES, Wire
from queuecontroller.server.config import SYSTEM_SOCKET, split_address

DEADLINE_S: Final = 10.0
"""For calls that need no waiting."""
APPLY_DEADLINE_S: Final = 120.0
UNIX: Final = "unix:"
LARGEST_ANSWER: Final = 16 << 20
OBJECTS_A_CALL: Final = 200
"""As many workloads as one call of a user may stand for; it fits into a message with room to
spare."""


class Unreachable(Exception):
    """No service answers; the text says where it was looked for."""


class EndpointUnusable(Unreachable):
    """What says where the service is, or who we are, cannot be used; the text names the flag."""


class Refused(Exception):
    """The service says no."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        """INVALID_ARGUMENT, NOT_FOUND and so on, gRPC's names."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the service is and how to prove who we are. Paths are PEM files."""

    address: str
    """`unix:PATH` or ADDRESS:PORT."""
    ca: str = ""
    certificate: str = ""
    key: str = ""
    server_name: str = ""
    """What the server's certificate must be for, where that is not the address."""
    token_file: str = ""
    """Of a Kubernetes token; read at every call, since it is renewed."""


def open_channel(door: Endpoint, options: Sequence[tuple[str, Any]] = ()) -> Any:
    """Raises EndpointUnusable."""
    every = [
        ("grpc.max_receive_message_length", LARGEST_ANSWER),
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        *options,
    ]
    if not door.ca and (door.certificate or door.key or door.token_file):
        raise EndpointUnusable(
            "--certificate and --key, or --token-file, need --ca, the authority of the server"
        )
    if door.address.startswith(UNIX):
        if not door.address.startswith(f"{UNIX}/"):
            raise EndpointUnusable(
                f"--server: {door.address!r}: must be unix: and an absolute path"
            )
        if door.ca:
            raise EndpointUnusable(f"--ca: {door.address} is a Unix socket: no TLS is spoken there")
        # A proxy setting in the environment must not send local calls elsewhere.
        return grpc.insecure_channel(door.address, options=[*every, ("grpc.enable_http_proxy", 0)])
    try:
        split_address(door.address)
    except ValueError as error:
        raise EndpointUnusable(f"--server: {error}, nor unix:/PATH") from None
    if not door.ca:
        raise EndpointUnusable(
            f"--server: {door.address} is TCP, which needs TLS: give the authority's file (--ca);"
            f" on the controller's own machine use its socket, unix:{SYSTEM_SOCKET}"
        )
    if bool(door.certificate) != bool(door.key):
        raise EndpointUnusable("--certificate and --key belong together")
    credentials = grpc.ssl_channel_credentials(
        _pem("--ca", door.ca, b"CERTIFICATE"),
        _pem("--key", door.key, b"PRIVATE KEY") if door.key else None,
        _pem("--certificate", door.certificate, b"CERTIFICATE") if door.certificate else None,
    )
    if door.server_name:
        every.append(("grpc.ssl_target_name_override", door.server_name))
    return grpc.secure_channel(door.address, credentials, options=every)


def _token(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except OSError as error:
        raise EndpointUnusable(f"--token-file: {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise EndpointUnusable(f"--token-file: {path}: holds no token") from None


def _pem(flag: str, path: str, word: bytes) -> bytes:
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise EndpointUnusable(f"{flag}: {path}: {error.strerror}") from None
    if word not in text:
        raise EndpointUnusable(f"{flag}: {path}: holds no PEM {word.decode()}")
    return text


class Client:
    def __init__(self, door: Endpoint, wire: Wire) -> None:
        """Raises EndpointUnusable."""
        self._door = door
        self._wire = wire
        self._channel = open_channel(door)
        self._methods = wire.methods(QUEUES)

    def close(self) -> None:
        self._channel.close()

    # -- changing ---------------------------------------------------------------------------------

    def apply(
        self, documents: Sequence[Mapping[str, Any]], dry_run: bool = False
    ) -> list[dict[str, str]]:
        """All of them, or none: OBJECTS_A_CALL at the most. Raises Refused, Unreachable."""
        texts = [json.dumps(one, default=str) for one in documents]
        request = self._wire.ApplyRequest(objects=texts, dry_run=dry_run)
        return [
            {
                "kind": one.kind,
                "namespace": one.namespace,
                "name": one.name,
                "action": one.action,
            }
            for one in self._call("Apply", request, APPLY_DEADLINE_S).applied
        ]

    def delete(self, kind: str, namespace: str, name: str) -> dict[str, Any]:
        return _object(self._call("Delete", self._ref(kind, namespace, name)))

    def hold(self, kind: str, namespace: str, name: str, drain: bool) -> dict[str, Any]:
        request = self._wire.HoldRequest(object=self._ref(kind, namespace, name), drain=drain)
        return _object(self._call("Hold", request))

    def resume(self, kind: str, namespace: str, name: str) -> dict[str, Any]:
        return _object(self._call("Resume", self._ref(kind, namespace, name)))

    # -- reading ----------------------------------------------------------------------------------

    def get(self, kind: str, namespace: str, name: str) -> dict[str, Any]:
        return _object(self._call("Get", self._ref(kind, namespace, name)))

    def list(self, kind: str, namespace: str = "", queue: str = "") -> Iterator[dict[str, Any]]:
        """All of a kind, page by page."""
        after = ""
        while True:
            request = self._wire.ListRequest(
                kind=kind, namespace=namespace, queue=queue, after=after
            )
            page = self._call("List", request)
            yield from map(_object, page.objects)
            after = page.next
            if not after:
                return

    def watch(
        self, kind: str, namespace: str = "", queue: str = ""
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """(event, object); BOOKMARK once all there is has come."""
        request = self._wire.ListRequest(kind=kind, namespace=namespace, queue=queue)
        for update in self._stream("Watch", request):
            found = update.object
            shown = json.loads(found.json) if found.json else {}
            if not shown and update.event != "BOOKMARK":
                shown = {
                    "kind": found.kind,
                    "metadata": {"namespace": found.namespace, "name": found.name},
                }
            yield update.event, shown

    def follow(self, namespace: str, name: str) -> Iterator[Any]:
        """WorkloadStatus messages until it is over."""
        return self._stream("Follow", self._ref("Workload", namespace, name))

    def explain(self, namespace: str, name: str) -> Any:
        return self._call("Explain", self._ref("Workload", namespace, name))

    def open_page(self) -> tuple[str, float]:
        """A URL that one browser can open once, and for how many seconds it is good."""
        found = self._call("OpenPage", self._wire.QueuePageRequest())
        return found.url, found.valid_seconds

    def server(self) -> Any:
        return self._call("GetServer", self._wire.GetServerRequest())

    # -- calls ------------------------------------------------------------------------------------

    def _ref(self, kind: str, namespace: str, name: str) -> Any:
        return self._wire.ObjectRef(kind=kind, namespace=namespace, name=name)

    def _call(self, name: str, request: Any, deadline_s: float = DEADLINE_S) -> Any:
        method = self._methods[name]
        call = self._channel.unary_unary(
            f"/{QUEUES}/{name}",
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        with self._errors():
            return call(request, timeout=deadline_s, metadata=self._metadata())

    def _stream(self, name: str, request: Any) -> Iterator[Any]:
        method = self._methods[name]
        call = self._channel.unary_stream(
            f"/{QUEUES}/{name}",
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        with self._errors():
            yield from call(request, metadata=self._metadata())

    def _metadata(self) -> Sequence[tuple[str, str]]:
        path = self._door.token_file
        return [("authorization", f"Bearer {_token(path)}")] if path else []

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except grpc.RpcError as error:
            code, details = error.code(), error.details()
            if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                raise Unreachable(
                    f"the queue controller at {self._door.address}: {details}"
                ) from None
            raise Refused(code.name, details) from None


def _object(message: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(message.json)
    return found

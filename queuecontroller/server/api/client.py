"""The client of the users' service, for the verbs of `sluice-queue` and for tests."""

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
"""Timeout of calls that do not wait."""
APPLY_DEADLINE_S: Final = 120.0
UNIX: Final = "unix:"
LARGEST_ANSWER: Final = 16 << 20
OBJECTS_A_CALL: Final = 200
"""Objects sent in one call: the most workloads that one call of a user may create; they fit into a
message."""


class Unreachable(Exception):
    """The service does not answer; the text contains its address."""


class EndpointUnusable(Unreachable):
    """An option for the service's address or the client's credentials cannot be used; the text
    names the flag."""


class Refused(Exception):
    """The service refused the call."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        """gRPC's name of the status, as INVALID_ARGUMENT or NOT_FOUND."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Address of the service, and credentials of the client. Paths are PEM files."""

    address: str
    """`unix:PATH` or ADDRESS:PORT."""
    ca: str = ""
    certificate: str = ""
    key: str = ""
    server_name: str = ""
    """Name in the server's certificate, if it is not the address."""
    token_file: str = ""
    """Path of a Kubernetes token; read at every call, since the token is rotated."""


def open_channel(endpoint: Endpoint, options: Sequence[tuple[str, Any]] = ()) -> Any:
    """A channel to the service. Raises EndpointUnusable."""
    every = [
        ("grpc.max_receive_message_length", LARGEST_ANSWER),
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        *options,
    ]
    if not endpoint.ca and (endpoint.certificate or endpoint.key or endpoint.token_file):
        raise EndpointUnusable(
            "--certificate and --key, or --token-file, require --ca, the CA of the server"
        )
    if endpoint.address.startswith(UNIX):
        if not endpoint.address.startswith(f"{UNIX}/"):
            raise EndpointUnusable(
                f"--server: {endpoint.address!r}: must be unix: and an absolute path"
            )
        if endpoint.ca:
            raise EndpointUnusable(
                f"--ca: {endpoint.address} is a Unix socket, which does not use TLS: remove --ca"
            )
        # A proxy setting in the environment must not send local calls elsewhere.
        return grpc.insecure_channel(
            endpoint.address, options=[*every, ("grpc.enable_http_proxy", 0)]
        )
    try:
        split_address(endpoint.address)
    except ValueError as error:
        raise EndpointUnusable(f"--server: {error}, nor unix:/PATH") from None
    if not endpoint.ca:
        raise EndpointUnusable(
            f"--server: {endpoint.address} is TCP, which requires TLS: give the file of the CA"
            f" (--ca), or on the controller's own machine use its socket, unix:{SYSTEM_SOCKET}"
        )
    if bool(endpoint.certificate) != bool(endpoint.key):
        raise EndpointUnusable("--certificate and --key must be given together")
    credentials = grpc.ssl_channel_credentials(
        _pem("--ca", endpoint.ca, b"CERTIFICATE"),
        _pem("--key", endpoint.key, b"PRIVATE KEY") if endpoint.key else None,
        _pem("--certificate", endpoint.certificate, b"CERTIFICATE")
        if endpoint.certificate
        else None,
    )
    if endpoint.server_name:
        every.append(("grpc.ssl_target_name_override", endpoint.server_name))
    return grpc.secure_channel(endpoint.address, credentials, options=every)


def _token(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except OSError as error:
        raise EndpointUnusable(f"--token-file: {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise EndpointUnusable(f"--token-file: {path}: does not contain a token") from None


def _pem(flag: str, path: str, word: bytes) -> bytes:
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise EndpointUnusable(f"{flag}: {path}: {error.strerror}") from None
    if word not in text:
        raise EndpointUnusable(f"{flag}: {path}: does not contain a PEM {word.decode()}")
    return text


class Client:
    def __init__(self, endpoint: Endpoint, wire: Wire) -> None:
        """Raises EndpointUnusable."""
        self._endpoint = endpoint
        self._wire = wire
        self._channel = open_channel(endpoint)
        self._methods = wire.methods(QUEUES)

    def close(self) -> None:
        self._channel.close()

    # -- changing ---------------------------------------------------------------------------------

    def apply(
        self, documents: Sequence[Mapping[str, Any]], dry_run: bool = False
    ) -> list[dict[str, str]]:
        """Apply all objects, or none; at most OBJECTS_A_CALL. Raises Refused, Unreachable."""
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
        """All objects of a kind, page by page."""
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
        """Pairs of event and object; BOOKMARK follows the initial objects."""
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
        """WorkloadStatus messages until the workload has finished."""
        return self._stream("Follow", self._ref("Workload", namespace, name))

    def explain(self, namespace: str, name: str) -> Any:
        return self._call("Explain", self._ref("Workload", namespace, name))

    def open_page(self) -> tuple[str, float]:
        """A URL that one browser can open once, and its validity in seconds."""
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
        path = self._endpoint.token_file
        return [("authorization", f"Bearer {_token(path)}")] if path else []

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except grpc.RpcError as error:
            code, details = error.code(), error.details()
            if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                raise Unreachable(
                    f"the queue controller at {self._endpoint.address}: {details}"
                ) from None
            raise Refused(code.name, details) from None


def _object(message: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(message.json)
    return found

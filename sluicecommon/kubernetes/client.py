"""The API server over HTTP, with aiohttp 3.8 (Debian 12's) and later.

Thin: objects are plain documents as sent by the API server. Every call returns an answer or raises
ApiRefused or ApiAway. Calls are not retried here, because only the caller knows whether a retry is
safe.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final

import aiohttp

from sluicecommon.kubernetes.credentials import Credentials, NoAccess
from sluicecommon.kubernetes.errors import ApiAway, ApiRefused
from sluicecommon.kubernetes.resources import Resource
from sluicecommon.logs import error_text

DEADLINE_S: Final = 30.0
LARGEST_ANSWER_BYTES: Final = 512 << 20
MERGE_PATCH: Final = "application/merge-patch+json"
APPLY: Final = "application/apply-patch+yaml"
"""JSON is YAML."""
_NAMES_SERVERS: Final = tuple(map(int, aiohttp.__version__.split(".")[:2])) >= (3, 9)
_TROUBLE: Final = (aiohttp.ClientError, OSError, TimeoutError, asyncio.TimeoutError, NoAccess)

UNTIMED: Final = aiohttp.ClientTimeout(total=None)
"""aiohttp's timer for a whole request takes back every cancellation that comes at the moment it
ends, also that of the caller, who would wait for ever."""


class ApiClient:
    """Client for one event loop; connects at the first call."""

    def __init__(
        self,
        credentials: Credentials,
        user_agent: str,
        connections: int = 16,
        deadline_s: float = DEADLINE_S,
        largest_bytes: int = LARGEST_ANSWER_BYTES,
    ) -> None:
        """Raises NoAccess. `connections`: more than 16 writes in flight only add latency
        (docs/decisions/queue/0014-kubernetes-client.md). `largest_bytes`: a longer answer, other
        than a watch, is not read."""
        if credentials.access.server_name and not _NAMES_SERVERS:
            raise NoAccess("tls-server-name requires aiohttp 3.9 or later")
        self._credentials = credentials
        self._user_agent = user_agent
        self._connections = connections
        self._deadline_s = deadline_s
        self._largest_bytes = largest_bytes
        self._session: aiohttp.ClientSession | None = None

    @property
    def server(self) -> str:
        return self._credentials.access.server

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    # --- objects ------------------------------------------------------------------------------

    async def get(self, resource: Resource, name: str, namespace: str = "") -> dict[str, Any]:
        return await self._ask("GET", resource.path(namespace, name))

    async def get_path(self, path: str) -> dict[str, Any]:
        """A document that is not an object: /version, /apis/GROUP/VERSION."""
        return await self._ask("GET", path)

    async def list_page(
        self, resource: Resource, parameters: Sequence[tuple[str, str]] = (), namespace: str = ""
    ) -> bytes:
        """The bytes of a list, which a reflector decodes."""
        return await self._bytes("GET", resource.path(namespace), parameters)

    async def create(
        self, resource: Resource, document: Mapping[str, Any], namespace: str = ""
    ) -> dict[str, Any]:
        return await self._ask("POST", resource.path(namespace), document)

    async def create_part(
        self,
        resource: Resource,
        name: str,
        part: str,
        document: Mapping[str, Any],
        namespace: str = "",
    ) -> dict[str, Any]:
        """Create a subresource; `part` is binding or eviction."""
        return await self._ask("POST", resource.path(namespace, name, part), document)

    async def replace(
        self, resource: Resource, name: str, document: Mapping[str, Any], namespace: str = ""
    ) -> dict[str, Any]:
        """Replace the whole object; refused as a conflict if its `metadata.resourceVersion` is not
        the server's."""
        return await self._ask("PUT", resource.path(namespace, name), document)

    async def apply(
        self,
        resource: Resource,
        name: str,
        document: Mapping[str, Any],
        manager: str,
        namespace: str = "",
        subresource: str = "",
    ) -> dict[str, Any]:
        """Server-side apply of the given fields; fields that `manager` applied before and no longer
        gives are removed. It costs the server more than a patch, so it is for lists that several
        managers share."""
        path = resource.path(namespace, name, subresource)
        query = (("fieldManager", manager), ("force", "true"))
        return await self._ask("PATCH", path, document, APPLY, query)

    async def merge_patch(
        self,
        resource: Resource,
        name: str,
        patch: Mapping[str, Any],
        namespace: str = "",
        subresource: str = "",
        resource_version: str = "",
    ) -> dict[str, Any]:
        """Merge patch; `subresource` may be status. With `resource_version` it is refused as a
        conflict if the object has changed since. An empty patch costs the server as much as
        another, so do not send it."""
        if resource_version:
            head = dict(patch.get("metadata") or {}) | {"resourceVersion": resource_version}
            patch = {**patch, "metadata": head}
        path = resource.path(namespace, name, subresource)
        return await self._ask("PATCH", path, patch, MERGE_PATCH)

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str = "",
        uid: str = "",
        propagation: str = "",
    ) -> dict[str, Any]:
        """Delete an object. `uid` excludes a later object with the same name; `propagation` is
        Orphan, Background or Foreground if not the kind's default."""
        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if propagation:
            options["propagationPolicy"] = propagation
        if uid:
            options["preconditions"] = {"uid": uid}
        return await self._ask("DELETE", resource.path(namespace, name), options)

    # --- requests -----------------------------------------------------------------------------

    async def watch(
        self,
        resource: Resource,
        parameters: Sequence[tuple[str, str]],
        silence_s: float,
        namespace: str = "",
    ) -> AsyncIterator[bytes]:
        """Pieces of a watch's answer until the server ends it; the first is empty, after the
        response headers. Raises ApiRefused; ApiAway if it breaks or is silent for `silence_s`."""
        # The timeout applies only between two pieces, since a watch has no total duration.
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=self._deadline_s, sock_read=silence_s
        )
        async with self._request("GET", resource.path(namespace), parameters, timeout) as answer:
            yield b""
            try:
                async for piece in answer.content.iter_any():
                    yield piece
            except _TROUBLE as error:
                silent = isinstance(error, TimeoutError | asyncio.TimeoutError)
                what = f"silent for {silence_s:g} s" if silent else error_text(error)
                raise ApiAway(f"{self.server}: {what}") from error

    async def _ask(
        self,
        method: str,
        path: str,
        document: Mapping[str, Any] | None = None,
        kind: str = "application/json",
        parameters: Sequence[tuple[str, str]] = (),
    ) -> dict[str, Any]:
        body = await self._bytes(method, path, parameters, document, kind)
        try:
            read = json.loads(body)
        except ValueError as error:
            raise ApiAway(f"{self.server}{path}: not JSON: {error}") from error
        if not isinstance(read, dict):
            raise ApiAway(f"{self.server}{path}: not an object")
        return read

    async def _bytes(
        self,
        method: str,
        path: str,
        parameters: Sequence[tuple[str, str]] = (),
        document: Mapping[str, Any] | None = None,
        kind: str = "application/json",
    ) -> bytes:
        try:
            async with (
                asyncio.timeout(self._deadline_s),
                self._request(method, path, parameters, UNTIMED, document, kind) as answer,
            ):
                # An answer in chunks, or a compressed one, does not state its length.
                pieces, size = [], answer.content_length or 0
                if size <= self._largest_bytes:
                    size = 0
                    async for piece in answer.content.iter_any():
                        pieces.append(piece)
                        size += len(piece)
                        if size > self._largest_bytes:
                            break
                if size > self._largest_bytes:
                    raise ApiAway(f"{self.server}{path}: an answer of {size} bytes or more")
                return b"".join(pieces)
        except _TROUBLE as error:
            raise ApiAway(f"{self.server}: {error_text(error)}") from error

    @contextlib.asynccontextmanager
    async def _request(
        self,
        method: str,
        path: str,
        parameters: Sequence[tuple[str, str]],
        timeout: aiohttp.ClientTimeout,
        document: Mapping[str, Any] | None = None,
        kind: str = "application/json",
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A successful answer whose body is not read yet. Raises ApiRefused, ApiAway."""
        headers = {"Accept": "application/json"}
        data = None
        if document is not None:
            headers["Content-Type"] = kind
            data = json.dumps(document, separators=(",", ":")).encode()
        try:
            token = self._credentials.token()
            if token:
                headers["Authorization"] = f"Bearer {token}"
            request: dict[str, Any] = {"ssl": self._credentials.tls() or False}
            if name := self._credentials.access.server_name:
                request["server_hostname"] = name
            answer = await self._connected().request(
                method,
                self.server + path,
                params=list(parameters),
                data=data,
                headers=headers,
                timeout=timeout,
                allow_redirects=False,
                **request,
            )
        except _TROUBLE as error:
            raise ApiAway(f"{self.server}: {error_text(error)}") from error
        try:
            if answer.status >= 300:
                raise await self._refusal(answer)
            yield answer
        finally:
            if answer.content.at_eof():
                answer.release()
            else:
                answer.close()  # An unread body would delay the connection's next request.

    def _connected(self) -> aiohttp.ClientSession:
        if self._session is None:
            # Proxy variables are ignored, because the API server is in the cluster.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._connections, keepalive_timeout=60),
                headers={"User-Agent": self._user_agent},
                trust_env=False,
            )
        return self._session

    async def _refusal(self, answer: aiohttp.ClientResponse) -> ApiRefused:
        if answer.status == 401:
            self._credentials.forget()
        reason, message = "", answer.reason or ""
        with contextlib.suppress(*_TROUBLE, ValueError):
            status = json.loads(await answer.content.read(1 << 16))
            if isinstance(status, dict):
                reason = str(status.get("reason") or "")
                message = str(status.get("message") or message)
        return ApiRefused(
            answer.status, reason, message, _seconds(answer.headers.get("Retry-After"))
        )


def _seconds(text: str | None) -> float | None:
    return (
        min(float(text), 300.0) if text is not None and text.isascii() and text.isdigit() else None
    )

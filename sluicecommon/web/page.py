"""The page over HTTP: the front end's files, one resumable stream of server-sent events, and
queries and actions in JSON. The backend decides what each viewer sees; this module carries it.

Everything that the page loads comes from this server, and its Content-Security-Policy says so: no
script but the front end's files, no frame, no other origin. Actions need a header that a page of
another site cannot send.

A viewer that does not read holds one frame, a list of keys and the buffers of a socket, and is
disconnected when it has read nothing for a while.

Longer than 500 lines because every route shares the session, its limits and its stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import hashlib
import json
import logging
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from importlib.resources.abc import Traversable
from types import MappingProxyType
from typing import Any, Final, Protocol

from aiohttp import web

from sluicecommon.page.board import Frames, Sight, event
from sluicecommon.web.clients import Client, Clients
from sluicecommon.web.listener import Certificate, Limits, Listener
from sluicecommon.web.malformed import quiet_log

log = logging.getLogger(__name__)

MAX_CONNECTIONS: Final = 512
MAX_STREAMS: Final = 256
MAX_STREAMS_EACH: Final = 64
"""Streams of one viewer, each of them a browser window."""
LARGEST_BODY_BYTES: Final = 1 << 20
LARGEST_LOGIN_BYTES: Final = 16 << 10
"""Limit of the only body that is read without a credential."""
FRAME_S: Final = 0.25
"""Changes within this time are sent as one event."""
BEAT_S: Final = 10.0
"""Interval of comments in an idle stream, and of checks of its viewer's permissions."""
WRITE_S: Final = 20.0
"""A viewer that reads nothing for so long is disconnected; it may reconnect and resume."""
FIRST_S: Final = 10.0
"""Timeout of the TLS handshake and the head of the first request together."""
MAX_SILENT: Final = 128
"""Most connections that have sent no request yet."""
ENTERING: Final = 8
"""Most concurrent logins, since each may be a request to the Kubernetes API server."""
LONGEST_TOKEN: Final = 12_000
"""Characters, so that a login fits its body."""
ACTION_HEADER: Final = "X-Sluice-Page"
SECURITY: Final = MappingProxyType(
    {
        "Content-Security-Policy": (
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
            " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        ),
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
    }
)
ENDED: Final = b'event: bye\ndata: "your rights have ended"\n\n'
_KINDS: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


class Refusal(Exception):
    """A refused request, with the HTTP status and the text for the viewer."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class Viewer:
    """The user behind a request."""

    name: str
    """The name in messages and audit rows."""
    sight: Sight
    rights: Mapping[str, Any] = field(default_factory=dict)
    """The actions that the front end offers; the backend checks each one again."""
    whom: Any = None
    """The backend's own identity of the user."""


class Backend(Protocol):
    """The service whose state the page shows."""

    @property
    def site(self) -> str:
        """`queue` or `node`, which selects the front end's views."""

    def start(self) -> None:
        """Start its tasks in the running event loop."""

    async def close(self) -> None: ...

    @property
    def takes_tokens(self) -> bool:
        """True if the credential is a Kubernetes token, False if a one-time URL starts the
        session."""

    @property
    def frames(self) -> Frames | None:
        """The frames to send; None while there is nothing to show, for `why_not_ready`."""

    @property
    def why_not_ready(self) -> str: ...

    async def enter(self, secret: str) -> str:
        """Exchange a secret for the credential of later requests. Raises Refusal."""

    async def viewer(self, credential: str) -> Viewer:
        """The user of a credential, cached for at most a minute. Raises Refusal."""

    def leave(self, credential: str) -> None: ...

    def watched(self, viewers: int) -> None:
        """Receives the number of open streams whenever it changes."""

    async def ask(self, viewer: Viewer, what: str, given: Mapping[str, str]) -> Any:
        """Answer a query. Raises Refusal."""

    async def act(self, viewer: Viewer, what: str, given: Mapping[str, Any]) -> Any:
        """Carry out an action. Raises Refusal."""


@dataclass(frozen=True, slots=True)
class _File:
    body: bytes
    packed: bytes
    kind: str
    etag: str


def read_front() -> dict[str, _File]:
    """Every file of the front end, by its path in the URL."""
    found: dict[str, _File] = {}

    def take(where: Traversable, prefix: str) -> None:
        for one in where.iterdir():
            if one.is_dir():
                if not one.name.startswith("_"):
                    take(one, f"{prefix}{one.name}/")
                continue
            kind = _KINDS.get(one.name[one.name.rfind(".") :])
            if kind is not None:
                body = one.read_bytes()
                etag = f'"{hashlib.sha256(body).hexdigest()[:24]}"'
                packed = gzip.compress(body, 9, mtime=0)
                found[prefix + one.name] = _File(body, packed, kind, etag)

    take(resources.files("sluicecommon.page").joinpath("front"), "")
    return found


class PageServer:
    """Serves the page on a socket."""

    def __init__(
        self, bound: socket.socket, backend: Backend, certificate: Certificate | None = None
    ) -> None:
        """`bound` is bound to its address; the server closes it."""
        self._socket = bound
        self._backend = backend
        self._secure = certificate is not None
        self._files = read_front()
        self._cookie_name = f"sluice-page-{self.port}"
        self._entering = asyncio.Semaphore(ENTERING)
        self._streams: Counter[str] = Counter()
        self._runner: web.AppRunner | None = None
        self._listener = Listener(
            self._protocol,
            Clients(MAX_CONNECTIONS, MAX_CONNECTIONS, keeps_asked=True, most_silent=MAX_SILENT),
            Limits(FIRST_S, first_s=FIRST_S),
            certificate,
        )
        self._closing = asyncio.Event()
        self._slow: Counter[str] = Counter()
        """Windows by viewer that were disconnected because they read nothing, and have not yet
        reconnected."""
        self.slow_total = 0
        """Windows that were disconnected because they read nothing."""
        self.bytes_total = 0
        """Bytes sent on streams."""

    async def start(self) -> None:
        """Listen. Raises OSError."""
        app = web.Application(client_max_size=LARGEST_BODY_BYTES)
        app.router.add_get("/", self._front)
        app.router.add_get("/front/{path:.+}", self._front)
        app.router.add_post("/api/enter", self._guarded(self._enter))
        app.router.add_post("/api/leave", self._guarded(self._leave))
        app.router.add_get("/api/session", self._guarded(self._session))
        app.router.add_get("/api/stream", self._guarded(self._stream))
        app.router.add_get("/api/{what:[a-z-]+}", self._guarded(self._ask))
        app.router.add_post("/api/{what:[a-z-]+}", self._guarded(self._act))
        app.on_response_prepare.append(_add_headers)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            logger=quiet_log(__name__),
            auto_decompress=False,  # Nothing that the page sends is compressed.
            keepalive_timeout=15.0,
        )
        await self._runner.setup()
        await self._listener.start_on(self._socket)
        log.info("page: port %d", self.port)

    async def _protocol(self, _client: Client) -> asyncio.Protocol:
        assert self._runner is not None
        assert self._runner.server is not None
        made: asyncio.Protocol = self._runner.server()
        return made

    @property
    def port(self) -> int:
        port: int = self._socket.getsockname()[1]
        return port

    @property
    def viewers(self) -> int:
        return self._streams.total()

    async def close(self) -> None:
        self._closing.set()
        self._listener.stop()
        if self._runner is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(2.0):
                    await self._runner.cleanup()

    # -- files ------------------------------------------------------------------------------------

    async def _front(self, request: web.Request) -> web.Response:
        found = self._files.get(request.match_info.get("path", "index.html"))
        if found is None:
            return _error(404, "no such file")
        headers = {"ETag": found.etag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
        if request.headers.get("If-None-Match") == found.etag:
            return web.Response(status=304, headers=headers)
        headers["Content-Type"] = found.kind
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            headers["Content-Encoding"] = "gzip"
            return web.Response(body=found.packed, headers=headers)
        return web.Response(body=found.body, headers=headers)

    # -- the viewer -------------------------------------------------------------------------------

    @property
    def _cookie(self) -> str:
        """The cookie's name. Cookies are not separated by port, so that two services on one machine
        need different names."""
        return self._cookie_name

    def _credential(self, request: web.Request) -> str:
        """Raises Refusal."""
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if self._backend.takes_tokens and scheme.lower() == "bearer" and token.strip():
            return token.strip()
        found = request.cookies.get(self._cookie, "")
        if not found:
            raise Refusal(401, "not logged in")
        return found

    async def _viewer(self, request: web.Request) -> Viewer:
        return await self._backend.viewer(self._credential(request))

    async def _enter(self, request: web.Request) -> web.StreamResponse:
        body = await _body(request, LARGEST_LOGIN_BYTES)
        secret = body.get("secret")
        if not isinstance(secret, str) or not 0 < len(secret) <= LONGEST_TOKEN:
            raise Refusal(
                400,
                f"a secret has 1 to {LONGEST_TOKEN} characters; a proxy can pass longer tokens in"
                " the header Authorization",
            )
        async with self._entering:
            credential = await self._backend.enter(secret.strip())
        answer = web.json_response({"entered": True})
        answer.set_cookie(
            self._cookie,
            credential,
            httponly=True,
            samesite="Strict",
            secure=self._secure,
            path="/",
        )
        return answer

    async def _leave(self, request: web.Request) -> web.StreamResponse:
        with contextlib.suppress(Refusal):
            self._backend.leave(self._credential(request))
        answer = web.json_response({"entered": False})
        answer.del_cookie(self._cookie, path="/")
        return answer

    async def _session(self, request: web.Request) -> web.StreamResponse:
        head = {"site": self._backend.site, "tokens": self._backend.takes_tokens}
        try:
            viewer = await self._viewer(request)
        except Refusal as refusal:
            if refusal.status == 401:  # Not an error: the browser's console would show one.
                return _json({**head, "viewer": None, "why": str(refusal)})
            raise
        return _json({**head, "viewer": viewer.name, "rights": dict(viewer.rights)})

    # -- the stream -------------------------------------------------------------------------------

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        credential = self._credential(request)
        viewer = await self._backend.viewer(credential)
        if self._backend.frames is None:
            raise Refusal(503, self._backend.why_not_ready or "the page is not ready yet")
        if self._streams.total() >= MAX_STREAMS:
            raise Refusal(503, f"too many open windows of this page (limit {MAX_STREAMS})")
        if self._streams[viewer.name] >= MAX_STREAMS_EACH:
            raise Refusal(
                429,
                f"too many open windows of {viewer.name} (limit {MAX_STREAMS_EACH}): close one",
            )
        answer = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
        )
        await answer.prepare(request)
        self._streams[viewer.name] += 1
        self._backend.watched(self.viewers)
        try:
            await self._feed(request, answer, credential, viewer)
        except ConnectionError:
            pass  # The viewer disconnected; it may resume.
        except TimeoutError:
            log.info(
                "page: a window of %s read nothing for %g s and was disconnected",
                viewer.name,
                WRITE_S,
            )
            self.slow_total += 1
            if len(self._slow) >= MAX_STREAMS:
                self._slow.clear()  # These windows have not reconnected.
            self._slow[viewer.name] += 1
            if request.transport is not None:
                request.transport.abort()  # close() would wait until the unsent bytes are read.
        finally:
            self._streams[viewer.name] -= 1
            if not self._streams[viewer.name]:
                del self._streams[viewer.name]
            self._backend.watched(self.viewers)
        return answer

    async def _feed(
        self, request: web.Request, answer: web.StreamResponse, credential: str, viewer: Viewer
    ) -> None:
        """Send events until the viewer disconnects or loses its permissions or the service ends."""
        loop = asyncio.get_running_loop()
        sight, known = viewer.sight, self._resumed(request)
        silent_until_s = look_s = loop.time() + BEAT_S
        fed = self._backend.frames
        await self._send(answer, b"retry: 1000\n\n")
        if known is not None and self._slow.pop(viewer.name, 0):
            text = f"this page read nothing for {WRITE_S:g} s and was disconnected; it has resumed"
            await self._send(answer, event("cut", text))
        while not self._closing.is_set():
            frames = self._backend.frames
            if frames is None:
                return
            if frames is not fed:
                fed, known = frames, None
            if loop.time() >= look_s:
                look_s = loop.time() + BEAT_S
                now = await self._sight(credential)
                if now is None:
                    await self._send(answer, ENDED)
                    return
                if now != sight:
                    sight, known = now, None
            if known is None or known != frames.board.revision:
                known, events = frames(known, sight)
                for one in events:  # Each is made when the previous one has been sent.
                    await self._send(answer, one)
                    # An event may have megabytes; other tasks run between two.
                    await asyncio.sleep(0)
                    if loop.time() >= look_s:
                        look_s = loop.time() + BEAT_S
                        now = await self._sight(credential)
                        if now != sight:
                            look_s, known = 0.0, None
                            break
                silent_until_s = loop.time() + BEAT_S
            elif loop.time() >= silent_until_s:
                silent_until_s = loop.time() + BEAT_S
                await self._send(answer, b": here\n\n")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FRAME_S):
                    await self._closing.wait()

    async def _sight(self, credential: str) -> Sight | None:
        """The permissions of the viewer now; None once its credential has ended."""
        try:
            return (await self._backend.viewer(credential)).sight
        except Refusal:
            return None

    def _resumed(self, request: web.Request) -> int | None:
        frames = self._backend.frames
        last = request.headers.get("Last-Event-ID") or request.query.get("after", "")
        return frames.board.read_stamp(last) if frames is not None and last else None

    async def _send(self, answer: web.StreamResponse, data: bytes) -> None:
        async with asyncio.timeout(WRITE_S):
            await answer.write(data)
        self.bytes_total += len(data)

    # -- queries and actions ----------------------------------------------------------------------

    async def _ask(self, request: web.Request) -> web.StreamResponse:
        viewer = await self._viewer(request)
        what, given = request.match_info["what"], dict(request.query)
        return _json(await self._backend.ask(viewer, what, given))

    async def _act(self, request: web.Request) -> web.StreamResponse:
        viewer = await self._viewer(request)
        return _json(
            await self._backend.act(viewer, request.match_info["what"], await _body(request))
        )

    def _guarded(
        self, call: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            try:
                if request.headers.get("Sec-Fetch-Site", "same-origin") not in (
                    "same-origin",
                    "none",
                ):
                    raise Refusal(403, "requests from other sites are refused")
                if request.method == "POST" and ACTION_HEADER not in request.headers:
                    raise Refusal(403, f"the header {ACTION_HEADER} is missing")
                return await call(request)
            except Refusal as refusal:
                return _error(refusal.status, str(refusal))

        return handle


async def _add_headers(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers.extend(SECURITY)
    response.headers.setdefault("Cache-Control", "no-store")


async def _body(request: web.Request, most: int = LARGEST_BODY_BYTES) -> dict[str, Any]:
    """The JSON object in a request's body of a known length. Raises Refusal."""
    if request.content_length is None:
        raise Refusal(411, "a length is required")
    if request.content_length > most:
        raise Refusal(413, f"the body is larger than {most >> 10} KiB")
    if request.content_type != "application/json":
        raise Refusal(415, "the content type must be application/json")
    try:
        async with asyncio.timeout(WRITE_S):
            found = json.loads(await request.read())
    except web.HTTPRequestEntityTooLarge:
        raise Refusal(413, f"the body is larger than {LARGEST_BODY_BYTES >> 10} KiB") from None
    except (ValueError, RecursionError):
        raise Refusal(400, "the body is not JSON") from None
    except TimeoutError:
        raise Refusal(408, f"timed out after {WRITE_S:g} s: the body did not arrive") from None
    if not isinstance(found, dict):
        raise Refusal(400, "expected a JSON object")
    return found


def _json(value: Any) -> web.Response:
    body = json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=str)
    return web.Response(body=body.encode(errors="replace"), content_type="application/json")


def _error(status: int, text: str) -> web.Response:
    """An error response. A 503 closes the connection, so that the next attempt may reach another
    replica that is ready."""
    answer = web.json_response({"error": text}, status=status)
    if status == 503:
        answer.force_close()
    return answer


__all__ = ["Backend", "PageServer", "Refusal", "Viewer"]

"""A page over HTTP: the front end's files, one stream of server-sent events that resumes, and
questions and actions in JSON. What is shown to whom is the backend's; this only carries it.

Everything that the page loads comes from here, and the browser is told so (CSP): no script but our
files, no frame, no other origin. Actions need a header that no other site's page can send.

A viewer who does not read holds one frame, a list of keys and the buffers of a socket, and is cut
when it took nothing for a while.

Weak spot: who connects and asks nothing is bounded in number only; listen on loopback or behind a
proxy where that matters.
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
from sluicecommon.web.server import Certificate

log = logging.getLogger(__name__)

MOST_CONNECTIONS: Final = 512
MOST_STREAMS: Final = 256
MOST_STREAMS_EACH: Final = 64
"""Of one viewer's: as many windows."""
LARGEST_BODY_BYTES: Final = 1 << 20
FRAME_S: Final = 0.25
"""Several changes within it are one event."""
BEAT_S: Final = 10.0
"""A comment in a silent stream; also how often its viewer's rights are looked at anew."""
WRITE_S: Final = 20.0
"""A viewer that takes nothing for so long is dropped; it may come back and resume."""
ENTERING: Final = 8
"""Logins under way at once: each may be a question to Kubernetes."""
LONGEST_TOKEN: Final = 3_800
"""Browsers keep cookies of 4 KiB."""
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
    """The answer is no; the text is for the viewer."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class Viewer:
    name: str
    """As messages and audit rows have it."""
    sight: Sight
    rights: Mapping[str, Any] = field(default_factory=dict)
    """What the front end should offer; the backend decides again when it is asked."""
    whom: Any = None
    """The backend's own: who this is to it."""


class Backend(Protocol):
    """What a service shows."""

    @property
    def site(self) -> str:
        """`queue` or `node`: which pages there are."""

    def start(self) -> None:
        """In the running loop."""

    async def close(self) -> None: ...

    @property
    def takes_tokens(self) -> bool:
        """The credential is a Kubernetes token, else a session that a one-time URL began."""

    @property
    def frames(self) -> Frames | None:
        """None: it has nothing to show now; `why_not_ready` says why."""

    @property
    def why_not_ready(self) -> str: ...

    async def enter(self, secret: str) -> str:
        """The credential to come with from now on. Raises Refusal."""

    async def viewer(self, credential: str) -> Viewer:
        """Whose it is, by what is known for a minute at most. Raises Refusal."""

    def leave(self, credential: str) -> None: ...

    def watched(self, viewers: int) -> None:
        """So many follow the stream now."""

    async def ask(self, viewer: Viewer, what: str, given: Mapping[str, str]) -> Any:
        """Raises Refusal."""

    async def act(self, viewer: Viewer, what: str, given: Mapping[str, Any]) -> Any:
        """Raises Refusal."""


@dataclass(frozen=True, slots=True)
class _File:
    body: bytes
    packed: bytes
    kind: str
    etag: str


def read_front() -> dict[str, _File]:
    """Every file of the front end, by its path on the page."""
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


class _Turned(asyncio.Protocol):
    """For who comes when all places are taken."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.Transport):
            transport.abort()


class PageServer:
    def __init__(
        self, bound: socket.socket, backend: Backend, certificate: Certificate | None = None
    ) -> None:
        """`bound` to its address, and taken over."""
        self._socket = bound
        self._backend = backend
        self._certificate = certificate
        self._files = read_front()
        self._cookie_name = f"sluice-page-{self.port}"
        self._entering = asyncio.Semaphore(ENTERING)
        self._streams: Counter[str] = Counter()
        self._runner: web.AppRunner | None = None
        self._server: asyncio.Server | None = None
        self._closing = asyncio.Event()
        self._slow: Counter[str] = Counter()
        """Windows that were cut because they took nothing, and do not know it yet."""
        self.slow_total = 0
        """Windows that were cut so."""
        self.bytes_total = 0
        """Sent on streams."""

    async def start(self) -> None:
        """Raises OSError."""
        app = web.Application(client_max_size=LARGEST_BODY_BYTES)
        app.router.add_get("/", self._front)
        app.router.add_get("/front/{path:.+}", self._front)
        app.router.add_post("/api/enter", self._guarded(self._enter))
        app.router.add_post("/api/leave", self._guarded(self._leave))
        app.router.add_get("/api/session", self._guarded(self._session))
        app.router.add_get("/api/stream", self._guarded(self._stream))
        app.router.add_get("/api/{what:[a-z-]+}", self._guarded(self._ask))
        app.router.add_post("/api/{what:[a-z-]+}", self._guarded(self._act))
        app.on_response_prepare.append(_secure)
        self._runner = web.AppRunner(app, access_log=None, keepalive_timeout=15.0)
        await self._runner.setup()
        context = self._certificate.context if self._certificate is not None else None
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._protocol, sock=self._socket, ssl=context)
        log.info("page: port %d", self.port)

    def _protocol(self) -> asyncio.Protocol:
        assert self._runner is not None
        assert self._runner.server is not None
        if self._certificate is not None:
            self._certificate.refresh()
        if len(self._runner.server.connections) >= MOST_CONNECTIONS:
            return _Turned()
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
        if self._server is not None:
            self._server.close()
        if self._runner is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(2.0):
                    await self._runner.cleanup()

    # -- files ------------------------------------------------------------------------------------

    async def _front(self, request: web.Request) -> web.Response:
        found = self._files.get(request.match_info.get("path", "index.html"))
        if found is None:
            return _told(404, "no such file")
        headers = {"ETag": found.etag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
        if request.headers.get("If-None-Match") == found.etag:
            return web.Response(status=304, headers=headers)
        headers["Content-Type"] = found.kind
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            headers["Content-Encoding"] = "gzip"
            return web.Response(body=found.packed, headers=headers)
        return web.Response(body=found.body, headers=headers)

    # -- who it is --------------------------------------------------------------------------------

    @property
    def _cookie(self) -> str:
        """Cookies know no ports: two services on one machine must not take each other's."""
        return self._cookie_name

    def _credential(self, request: web.Request) -> str:
        """Raises Refusal."""
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if self._backend.takes_tokens and scheme.lower() == "bearer" and token.strip():
            return token.strip()
        found = request.cookies.get(self._cookie, "")
        if not found:
            raise Refusal(401, "nobody is logged in here")
        return found

    async def _viewer(self, request: web.Request) -> Viewer:
        return await self._backend.viewer(self._credential(request))

    async def _enter(self, request: web.Request) -> web.StreamResponse:
        body = await _body(request)
        secret = body.get("secret")
        if not isinstance(secret, str) or not 0 < len(secret) <= LONGEST_TOKEN:
            raise Refusal(
                400,
                f"a secret has 1 to {LONGEST_TOKEN} characters; longer tokens come by a proxy,"
                " in the header Authorization",
            )
        async with self._entering:
            credential = await self._backend.enter(secret.strip())
        answer = web.json_response({"entered": True})
        answer.set_cookie(
            self._cookie,
            credential,
            httponly=True,
            samesite="Strict",
            secure=self._certificate is not None,
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
            if refusal.status == 401:  # an answer like any other: a console shows no error
                return _json({**head, "viewer": None, "why": str(refusal)})
            raise
        return _json({**head, "viewer": viewer.name, "rights": dict(viewer.rights)})

    # -- the stream -------------------------------------------------------------------------------

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        credential = self._credential(request)
        viewer = await self._backend.viewer(credential)
        if self._backend.frames is None:
            raise Refusal(503, self._backend.why_not_ready or "nothing to show yet")
        if self._streams.total() >= MOST_STREAMS:
            raise Refusal(503, f"{MOST_STREAMS} windows follow this page already")
        if self._streams[viewer.name] >= MOST_STREAMS_EACH:
            raise Refusal(429, f"{viewer.name} has {MOST_STREAMS_EACH} windows already: close one")
        answer = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
        )
        await answer.prepare(request)
        self._streams[viewer.name] += 1
        self._backend.watched(self.viewers)
        try:
            await self._feed(request, answer, credential, viewer)
        except ConnectionError:
            pass  # it is gone: it may resume
        except TimeoutError:
            log.info("page: a window of %s took nothing for %g s: cut", viewer.name, WRITE_S)
            self.slow_total += 1
            if len(self._slow) >= MOST_STREAMS:
                self._slow.clear()  # those who never came back
            self._slow[viewer.name] += 1
            if request.transport is not None:
                request.transport.abort()  # what is unsent would wait with it
        finally:
            self._streams[viewer.name] -= 1
            if not self._streams[viewer.name]:
                del self._streams[viewer.name]
            self._backend.watched(self.viewers)
        return answer

    async def _feed(
        self, request: web.Request, answer: web.StreamResponse, credential: str, viewer: Viewer
    ) -> None:
        """Until the viewer goes, loses its rights, or the service ends."""
        loop = asyncio.get_running_loop()
        sight, known = viewer.sight, self._resumed(request)
        silent_until_s = look_s = loop.time() + BEAT_S
        fed = self._backend.frames
        await self._send(answer, b"retry: 1000\n\n")
        if known is not None and self._slow.pop(viewer.name, 0):
            said = f"this page took nothing for {WRITE_S:g} s and was cut; it goes on where it was"
            await self._send(answer, event("cut", said))
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
                for one in events:  # made as they are taken, which may be slowly
                    await self._send(answer, one)
                    await asyncio.sleep(0)  # megabytes: others have their turn
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
        """As it is now; None: its rights have ended."""
        try:
            return (await self._backend.viewer(credential)).sight
        except Refusal:
            return None

    def _resumed(self, request: web.Request) -> int | None:
        frames = self._backend.frames
        said = request.headers.get("Last-Event-ID") or request.query.get("after", "")
        return frames.board.read_stamp(said) if frames is not None and said else None

    async def _send(self, answer: web.StreamResponse, data: bytes) -> None:
        async with asyncio.timeout(WRITE_S):
            await answer.write(data)
        self.bytes_total += len(data)

    # -- questions and actions --------------------------------------------------------------------

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
                    raise Refusal(403, "this is for the page itself, not for other sites")
                if request.method == "POST" and ACTION_HEADER not in request.headers:
                    raise Refusal(403, f"the header {ACTION_HEADER} is missing")
                return await call(request)
            except Refusal as refusal:
                return _told(refusal.status, str(refusal))

        return handle


async def _secure(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers.extend(SECURITY)
    response.headers.setdefault("Cache-Control", "no-store")


async def _body(request: web.Request) -> dict[str, Any]:
    """Raises Refusal."""
    if request.content_type != "application/json":
        raise Refusal(415, "application/json is expected")
    try:
        async with asyncio.timeout(WRITE_S):
            found = json.loads(await request.read())
    except web.HTTPRequestEntityTooLarge:
        raise Refusal(413, f"more than {LARGEST_BODY_BYTES >> 10} KiB") from None
    except (ValueError, RecursionError):
        raise Refusal(400, "no JSON") from None
    except TimeoutError:
        raise Refusal(408, f"the question did not come within {WRITE_S:g} s") from None
    if not isinstance(found, dict):
        raise Refusal(400, "an object is expected")
    return found


def _json(value: Any) -> web.Response:
    body = json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=str)
    return web.Response(body=body.encode(errors="replace"), content_type="application/json")


def _told(status: int, text: str) -> web.Response:
    """`Connection: close` where another replica may know better: the next try may reach it."""
    answer = web.json_response({"error": text}, status=status)
    if status == 503:
        answer.force_close()
    return answer


__all__ = ["Backend", "PageServer", "Refusal", "Viewer"]

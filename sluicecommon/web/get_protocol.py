"""aiohttp's protocol for GetServer: it reads the request, and writes the answer and closes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from aiohttp import HttpVersion10, HttpVersion11, web

from sluicecommon.web.answers import LONGEST_REQUEST_BYTES, Answer, Responder

log = logging.getLogger(__name__)

METHODS: Final = ("GET", "HEAD")
NOT_HTTP: Final = b"not a request of HTTP/1.1\n"
SERVER: Final = "sluice"
"""Instead of aiohttp's header, which has the versions of aiohttp and Python."""


def protocols(answer: Responder) -> Callable[[], asyncio.Protocol]:
    """A function that makes one protocol per connection, in the running loop."""

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        if request.version not in (HttpVersion10, HttpVersion11):
            return _response(Answer(400, NOT_HTTP))
        if request.method not in METHODS:
            allowed = {"Allow": ", ".join(METHODS)}
            return _response(Answer(405, b"GET and HEAD only\n", headers=allowed))
        try:
            return _response(answer(request.path, request.headers))
        except Exception:
            log.exception("%s: the request failed with an internal error", request.path)
            return _response(Answer(500, b"internal error\n"))

    server, loop = web.Server(handle), asyncio.get_running_loop()
    options: dict[str, Any] = {
        "access_log": None,
        "lingering_time": 0,
        "max_line_size": LONGEST_REQUEST_BYTES,
        "max_field_size": LONGEST_REQUEST_BYTES,
    }
    return lambda: _Protocol(server, loop=loop, **options)


class _Protocol(web.RequestHandler):
    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.Response:
        """Answer what aiohttp cannot parse, without a log line for each such client."""
        return _response(Answer(status, NOT_HTTP))


def _response(answer: Answer) -> web.Response:
    own = {"Content-Type": answer.kind, "Server": SERVER, "Connection": "close"}
    response = web.Response(
        status=answer.status, body=answer.body, headers={**own, **answer.headers}
    )
    response.force_close()
    return response

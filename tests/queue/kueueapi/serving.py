"""The webhooks on a thread of their own, with certificates of their own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from queuecontroller.server.web.webhooks import WebhookServer
from tests.cluster.programs.pki import Authority

NAMES = ["IP:127.0.0.1", "DNS:localhost", "DNS:sluice-queue-visibility.sluice.svc"]


def certify(place: Path) -> Authority:
    authority = Authority(place).create("webhooks")
    authority.issue("server", "/CN=webhooks", "serverAuth", NAMES)
    return authority


@contextmanager
def webhooks(place: Path) -> Iterator[WebhookServer]:
    """Serving while in the block; `place` has server.crt and server.key."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = WebhookServer(("127.0.0.1", 0), place / "server.crt", place / "server.key")
    try:
        asyncio.run_coroutine_threadsafe(server.start(), loop).result(30)
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(server.close(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()

"""The link to the queue controller when a session ends under the calls of those who wait here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from nodeagent import native
from nodeagent.adapters.api.wire import Wire
from nodeagent.adapters.queue.client import GrpcQueueLink
from nodeagent.ports.clients import GrantAsk, MemoryAsk
from nodeagent.ports.queue import LinkLost, Submission
from nodeagent.settings.daemon import QueueSettings
from nodeagent.units import Bytes, Ppm, SharePolicy

ASK = GrantAsk(1, MemoryAsk(amount_bytes=Bytes(1 << 30)), Ppm(10_000), SharePolicy.HARD)
SUBMISSION = Submission("team-a", "q", ASK, "somebody", "token", name="job-1")


class Silent(grpc.GenericRpcHandler):
    """A controller that takes every call and answers none."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    def service(self, details: Any) -> Any:
        async def never(request: bytes, context: Any) -> bytes:
            self.asked.set()
            await asyncio.sleep(3600)
            return b""

        return grpc.unary_unary_rpc_method_handler(never)


def with_a_silent_controller(
    directory: Path, scene: Callable[[GrpcQueueLink, Silent], Awaitable[None]]
) -> None:
    async def run() -> None:
        address = f"unix:{directory}/queue.sock"
        handler = Silent()
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((handler,))
        server.add_insecure_port(address)
        await server.start()
        link = GrpcQueueLink(
            QueueSettings(server=address), "n1", "b", "0", Wire(native.locate().wire_descriptors)
        )
        link._channel = link._open()
        try:
            await asyncio.wait_for(scene(link, handler), 60)
        finally:
            await link.close()
            await server.stop(None)

    asyncio.run(run())


def test_a_submission_under_way_when_the_session_ends_is_to_be_sent_again(tmp_path: Path) -> None:
    """The next session closes the channel; grpc cancels the call, which took its caller along: that job waited for
    ever, without a log line."""

    async def scene(link: GrpcQueueLink, controller: Silent) -> None:
        submit = asyncio.create_task(link.submit(SUBMISSION))
        await controller.asked.wait()
        await link.close()
        with pytest.raises(LinkLost, match="the session has ended"):
            await submit

    with_a_silent_controller(tmp_path, scene)


def test_who_is_cancelled_while_it_submits_is_cancelled(tmp_path: Path) -> None:
    async def scene(link: GrpcQueueLink, controller: Silent) -> None:
        submit = asyncio.create_task(link.submit(SUBMISSION))
        await controller.asked.wait()
        submit.cancel()
        with pytest.raises(asyncio.CancelledError):
            await submit

    with_a_silent_controller(tmp_path, scene)

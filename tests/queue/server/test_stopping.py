"""A replica that is stopped drains its webhooks first, and ends at once where it has none."""

from __future__ import annotations

import asyncio

from queuecontroller.server.stopping import cancel_at, drain, run_until
from queuecontroller.state.shell import EXIT_DEFECT, EXIT_OK


class Server:
    def __init__(self) -> None:
        self.drains = False

    def drain(self) -> None:
        self.drains = True


class Controller:
    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.runs = False

    async def run(self) -> None:
        self.runs = True
        try:
            if self.error is not None:
                raise self.error
            await asyncio.Event().wait()
        finally:
            self.runs = False


def test_it_works_on_while_its_callers_go_to_other_replicas() -> None:
    async def main() -> None:
        controller, server = Controller(), Server()
        stopped, drained = asyncio.Event(), asyncio.Event()
        registering = asyncio.create_task(asyncio.Event().wait())
        ending = asyncio.create_task(cancel_at(drained, registering))
        draining = asyncio.create_task(drain([server], stopped, 0.2, drained))
        running = asyncio.create_task(run_until(controller, drained))
        await asyncio.sleep(0.05)
        assert (controller.runs, server.drains) == (True, False)
        stopped.set()
        await asyncio.sleep(0.05)
        assert (controller.runs, server.drains) == (True, True)
        assert not registering.done(), "the visibility API is served until then"
        assert await running == EXIT_OK
        assert drained.is_set()
        assert not controller.runs
        await asyncio.gather(draining, ending)
        await asyncio.gather(registering, return_exceptions=True)
        assert registering.cancelled()

    asyncio.run(main())


def test_without_webhooks_or_time_it_ends_at_once() -> None:
    async def main(servers: list[Server], drain_s: float) -> None:
        stopped, drained = asyncio.Event(), asyncio.Event()
        stopped.set()
        async with asyncio.timeout(10):
            await drain(servers, stopped, drain_s, drained)
        assert drained.is_set()

    asyncio.run(main([], 60.0))
    asyncio.run(main([Server()], 0.0))


def test_a_defect_ends_it_before_it_is_stopped() -> None:
    async def main() -> None:
        assert await run_until(Controller(RuntimeError("a defect")), asyncio.Event()) == EXIT_DEFECT

    asyncio.run(main())

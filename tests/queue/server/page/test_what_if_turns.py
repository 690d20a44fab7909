"""A viewer has one what-if at a time and keeps no other viewer from theirs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from queuecontroller.server.page import what_if
from queuecontroller.server.page.what_if import WhatIfRunner
from sluicecommon.web.page import Refusal


class Held(WhatIfRunner):
    """Plays until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()

    async def _play(self, text: bytes) -> dict[str, Any]:
        await self.gate.wait()
        return {"bytes": len(text)}


def test_one_viewer_does_not_keep_others_from_theirs() -> None:
    async def main() -> None:
        player = Held()
        first = asyncio.create_task(player.play("ann", []))
        await asyncio.sleep(0)
        with pytest.raises(Refusal, match="your other what-if") as caught:
            await player.play("ann", [])
        assert caught.value.status == 429
        other = asyncio.create_task(player.play("ben", []))
        await asyncio.sleep(0)
        player.gate.set()
        assert (await first)["bytes"] == (await other)["bytes"] > 0
        assert await player.play("ann", [])

    asyncio.run(main())


def test_those_that_wait_are_bounded() -> None:
    async def main() -> None:
        player = Held()
        every = [asyncio.create_task(player.play(f"u{n}", [])) for n in range(what_if.MAX_VIEWERS)]
        await asyncio.sleep(0)
        with pytest.raises(Refusal, match="other what-ifs"):
            await player.play("late", [])
        player.gate.set()
        await asyncio.gather(*every)

    asyncio.run(main())

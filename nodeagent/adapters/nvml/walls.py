"""The driver's memory limits through a child process with a timeout; see `walls_child`. Implements
DriverWalls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

from nodeagent.adapters.host.child_request import ChildFailed, ask_child
from nodeagent.ports.driver.walls import WallOrder, WallReading, WallsUnavailable
from nodeagent.units import GpuUuid
from sluicecommon.plain import read_plain, write_all_fields

CHILD: Final = "nodeagent.adapters.nvml.walls_child"
DEADLINE_S: Final = 10.0
"""Seconds; includes the start of Python, and of the driver if no process has it open."""
LONGEST_ANSWER_BYTES: Final = 1 << 20


class ChildWalls:
    def __init__(
        self, library: str, together: Callable[[], AbstractAsyncContextManager[None]]
    ) -> None:
        """While `together` is held, no process has exclusive use of the driver."""
        self._library = library
        self._together = together

    async def missing(self, gpus: Sequence[GpuUuid]) -> Mapping[GpuUuid, str]:
        answer = await self._request({"do": "missing", "gpus": list(gpus)})
        return {GpuUuid(gpu): str(why) for gpu, why in answer["missing"].items()}

    async def set(self, orders: Sequence[WallOrder]) -> None:
        await self._request({"do": "set", "orders": [write_all_fields(one) for one in orders]})

    async def read(self, gpu: GpuUuid, cgroups: Sequence[str]) -> list[WallReading | None]:
        answer = await self._request({"do": "read", "gpu": gpu, "cgroups": list(cgroups)})
        return [read_plain(WallReading | None, one) for one in answer["readings"]]

    async def _request(self, request: Any) -> Any:
        try:
            async with self._together():
                return await ask_child(
                    CHILD, self._library, request, DEADLINE_S, LONGEST_ANSWER_BYTES, "NVML"
                )
        except ChildFailed as failed:
            raise WallsUnavailable(str(failed)) from None

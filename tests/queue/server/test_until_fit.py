"""The controller waits until its cluster can be checked, and ends at once when it is stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from queuecontroller.cluster.setup.preflight import Unfit
from queuecontroller.kueueapi import KINDS
from queuecontroller.server import kubernetes
from queuecontroller.server.kubernetes import _until_fit
from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.errors import ApiAway

SERVED = {"resources": [{"name": one.plural} for one in KINDS.values()]}


def waited(answer: Callable[[str], Awaitable[Any]], stop_s: float | None = None) -> bool:
    class Client:
        async def get_path(self, path: str) -> Any:
            return await answer(path)

    async def run() -> bool:
        stopped = asyncio.Event()
        if stop_s is not None:
            asyncio.get_running_loop().call_later(stop_s, stopped.set)
        async with asyncio.timeout(30):
            return await _until_fit(cast(ApiClient, Client()), stopped, beside=False)

    return asyncio.run(run())


async def never(path: str) -> Any:
    await asyncio.Event().wait()


def test_it_ends_while_a_check_has_no_answer() -> None:
    assert not waited(never, stop_s=0.05)


def test_it_ends_between_two_checks() -> None:
    async def away(path: str) -> Any:
        raise ApiAway("no answer in time")

    assert not waited(away, stop_s=0.05)


@pytest.mark.parametrize("error", [ApiAway("refused"), asyncio.CancelledError()])
def test_it_tries_again(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    monkeypatch.setattr(kubernetes, "AGAIN_S", 0.01)
    errors = [error]

    async def once(path: str) -> Any:
        if errors:
            raise errors.pop()
        return SERVED

    assert waited(once)


def test_a_cluster_that_does_not_fit_is_an_error() -> None:
    async def none(path: str) -> Any:
        return {}

    with pytest.raises(Unfit, match="does not serve"):
        waited(none)

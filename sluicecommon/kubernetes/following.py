"""Runs a reflector: makes its requests, feeds it the answers, and passes on the changes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Generic, TypeVar

from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.errors import ApiAway, ApiRefused
from sluicecommon.kubernetes.reflector import Change, Fetch, Pause, Reflector, Watch
from sluicecommon.kubernetes.resources import Resource

T = TypeVar("T")


class Follower(Generic[T]):
    """`changed` is called in the loop's thread with each change, in order; it must not block. An
    exception in it is a defect and ends `run`."""

    def __init__(
        self,
        client: ApiClient,
        resource: Resource,
        reflector: Reflector[T],
        changed: Callable[[Change[T]], None],
        namespace: str = "",
    ) -> None:
        self.reflector = reflector
        self._client = client
        self._resource = resource
        self._changed = changed
        self._namespace = namespace

    async def run(self) -> None:
        """Follow the resource until cancelled."""
        while True:
            await self.step()

    def vanished(self) -> None:
        """Report that the kind's definition was deleted."""
        self._tell(self.reflector.vanished())

    async def step(self) -> None:
        """Carry out one request of the reflector."""
        wanted = self.reflector.next
        match wanted:
            case Pause(seconds):
                await asyncio.sleep(seconds)
                self.reflector.paused()
            case Fetch(parameters):
                try:
                    body = await self._client.list_page(self._resource, parameters, self._namespace)
                except ApiRefused as refused:
                    self._refused(refused)
                except ApiAway as error:
                    self._tell(self.reflector.failed(str(error)))
                else:
                    self._tell(self.reflector.page(body))
            case Watch():
                await self._watch(wanted)

    async def _watch(self, wanted: Watch) -> None:
        pieces = self._client.watch(
            self._resource, wanted.parameters, wanted.silence_s, self._namespace
        )
        try:
            async with contextlib.aclosing(pieces):  # type: ignore[type-var]
                async for piece in pieces:
                    if not piece:
                        self.reflector.opened()
                    self._tell(self.reflector.piece(piece))
                    if self.reflector.next is not wanted:
                        return
        except ApiRefused as refused:
            self._refused(refused)
        except ApiAway as error:
            self._tell(self.reflector.ended(str(error)))
        else:
            self._tell(self.reflector.ended())

    def _refused(self, refused: ApiRefused) -> None:
        text = f"{refused.reason}: {refused.message}" if refused.reason else refused.message
        self._tell(self.reflector.refused(refused.status, text, refused.retry_after_s))

    def _tell(self, changes: list[Change[T]]) -> None:
        for change in changes:
            self._changed(change)

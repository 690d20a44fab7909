"""Ports for a node's ResourceSlices and for the status of its claims."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from nodeagent.ports.dra.claims import ClaimRef


class Conflict(Exception):
    """The object was changed or deleted meanwhile."""


class PoolAway(Exception):
    """The API server cannot be reached now, or refused; the text is its own."""


class SliceStore(Protocol):
    """This driver's slices of this node. All calls raise Conflict or PoolAway."""

    @property
    def node_uid(self) -> str:
        """UID of this node's Node object; empty until it is known."""

    @property
    def synced(self) -> bool:
        """True if the existing slices have been listed once."""

    def documents(self) -> Mapping[str, Mapping[str, Any]]:
        """Slices by name, as last read or written."""

    def on_change(self, call: Callable[[], None]) -> None: ...

    async def put(self, name: str, version: str, document: Mapping[str, Any]) -> str:
        """Write a slice and return its new resourceVersion."""

    async def delete(self, name: str, uid: str) -> None: ...


class ClaimStatus(Protocol):
    async def write(self, claim: ClaimRef, devices: list[dict[str, Any]]) -> None:
        """Write our devices to `status.devices`. Raises Conflict if the claim is gone, or
        PoolAway."""

    async def promised(self) -> list[Mapping[str, Any]]:
        """All claims with an allocation from this node's pool. Raises PoolAway."""

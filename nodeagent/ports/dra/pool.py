"""Where a node's ResourceSlices and the states of its claims are written, and who tells of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from nodeagent.ports.dra.claims import ClaimRef


class Conflict(Exception):
    """Somebody wrote it meanwhile, or it is gone."""


class PoolAway(Exception):
    """The API server cannot be asked now, or says no; the text is its own."""


class SliceStore(Protocol):
    """This driver's slices of this node. All raise Conflict, PoolAway."""

    @property
    def node_uid(self) -> str:
        """Empty: not known yet."""

    @property
    def synced(self) -> bool:
        """What is there has been told once."""

    def documents(self) -> Mapping[str, Mapping[str, Any]]:
        """By name, as last told or written."""

    def on_change(self, call: Callable[[], None]) -> None: ...

    async def put(self, name: str, version: str, document: Mapping[str, Any]) -> str:
        """The version that it has now."""

    async def delete(self, name: str, uid: str) -> None: ...


class ClaimStatus(Protocol):
    async def tell(self, claim: ClaimRef, devices: list[dict[str, Any]]) -> None:
        """Our devices in `status.devices`. Raises Conflict where the claim is gone, PoolAway."""

    async def promised(self) -> list[Mapping[str, Any]]:
        """All claims with an allocation from this node's pool. Raises PoolAway."""

"""Sources of a pod's facts: the API server and the kubelet, in the configured order; the first that
knows answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from nodeagent.ports.kubelet import (
    ContainerRequests,
    KubeletAway,
    NoPodSource,
    Owner,
    OwnerRef,
    PodIdentity,
    PodSource,
)

T = TypeVar("T")


class PodSources:
    """A PodSource made of several."""

    def __init__(self, sources: Sequence[PodSource], missing: str = "") -> None:
        """`missing`: why one that is configured is not among them."""
        self._sources = sources
        self._missing = missing

    async def requests(self, pod: PodIdentity, container: str) -> ContainerRequests:
        return await self._first(lambda source: source.requests(pod, container))

    async def owners(self, namespace: str, first: OwnerRef | None) -> tuple[Owner, ...]:
        if first is None:
            return ()
        return await self._first(lambda source: source.owners(namespace, first))

    async def _first(self, ask: Callable[[PodSource], Awaitable[T]]) -> T:
        """One that is away may know: it is waited for, unless another one answers."""
        away: list[str] = []
        lacks = [self._missing] if self._missing else []
        for source in self._sources:
            try:
                return await ask(source)
            except KubeletAway as error:
                away.append(str(error))
            except NoPodSource as error:
                lacks.append(str(error))
        if away:
            raise KubeletAway("; ".join(away))
        raise NoPodSource("; ".join(lacks) or "kubelet.pod_sources is empty")

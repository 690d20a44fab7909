"""Ownership of GPUs: a UUID belongs to the node that reported it first, until that node is lost or
deleted. A second node keeps the GPU in its report, but without work, so that a cloned or lying node
allocates nothing twice."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from queuecontroller.scheduler.placement.capacity import NodeCapacity

DUPLICATE: Final = "duplicate"
"""Health of a GPU that another node owns."""


class GpuOwners:
    def __init__(self) -> None:
        self._owner: dict[str, str] = {}
        self._reported: dict[str, tuple[str, ...]] = {}
        self.refused: dict[str, frozenset[str]] = {}
        """UUIDs by node that it reports although another node owns them."""

    def take(self, node: str, capacity: NodeCapacity) -> NodeCapacity:
        """The capacity with other nodes' GPUs marked as duplicate."""
        uuids = tuple(gpu.uuid for gpu in capacity.gpus)
        if uuids == self._reported.get(node) and node not in self.refused:
            return capacity  # The usual case: the report has the same GPUs as the one before.
        self.release(node)
        self._reported[node] = uuids
        others = frozenset(uuid for uuid in uuids if self._owner.setdefault(uuid, node) != node)
        if not others:
            return capacity
        self.refused[node] = others
        return replace(
            capacity,
            gpus=tuple(
                replace(gpu, health=DUPLICATE) if gpu.uuid in others else gpu
                for gpu in capacity.gpus
            ),
        )

    def owner(self, uuid: str) -> str:
        return self._owner.get(uuid, "")

    def release(self, node: str) -> None:
        for uuid in self._reported.pop(node, ()):
            if self._owner.get(uuid) == node:
                del self._owner[uuid]
        self.refused.pop(node, None)

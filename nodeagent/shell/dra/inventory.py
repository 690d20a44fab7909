"""What of this node is there for claims: facts of each GPU, less what others hold of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from nodeagent.core.dra.devices import DeviceFacts, DeviceRules
from nodeagent.core.grants.placement import Load, load_of
from nodeagent.shell.gpus.readings import Gpus
from nodeagent.shell.grants.keeper import Keeper
from nodeagent.units import GpuUuid


@dataclass(frozen=True, slots=True)
class Excluded:
    uuids: frozenset[str] = frozenset()
    indexes: frozenset[int] = frozenset()


class ForClaims(Protocol):
    def __call__(self, gpu: GpuUuid) -> bool:
        """Whether claims may have it, or its card; else it is the device plugin's."""


class Inventory:
    def __init__(
        self,
        keeper: Keeper,
        gpus: Gpus,
        for_claims: ForClaims,
        rules: DeviceRules,
        excluded: Excluded,
        pcie_root: Callable[[str], str | None],
    ) -> None:
        """`pcie_root`: of an address on the bus."""
        self.rules = rules
        self.excluded = excluded
        self._keeper = keeper
        self._gpus = gpus
        self._for_claims = for_claims
        self._pcie_root = pcie_root
        self._roots: dict[str, str | None] = {}

    def facts(self) -> tuple[DeviceFacts, ...]:
        """Of cards, and of the MIG instances of those that are cut."""
        others = self._others()
        capacities = {one.uuid: one for one in self._gpus.capacities()}
        found = []
        for unit in self._gpus.units():
            card = unit.mig_card or unit.uuid
            if (
                unit.uuid in self.excluded.uuids
                or card in self.excluded.uuids
                or unit.index in self.excluded.indexes
                or not self._for_claims(card)
            ):
                continue
            capacity = capacities[unit.uuid]
            found.append(
                DeviceFacts(
                    uuid=unit.uuid,
                    index=unit.index,
                    name=unit.name,
                    memory_bytes=capacity.memory_bytes,
                    largest_bytes=capacity.largest_bytes,
                    slots=capacity.slots,
                    health=self._gpus.health(unit.uuid),
                    withheld=self._gpus.withheld(unit.uuid),
                    others=others.get(unit.uuid, Load()),
                    mig_profile=unit.mig_profile,
                    card=unit.mig_card,
                    driver_version=self._gpus.driver_version,
                    cuda_version=self._gpus.cuda_version,
                    architecture=unit.architecture,
                    brand=unit.brand,
                    compute_capability=unit.compute_capability,
                    pci_bus_id=unit.pci_bus_id,
                    pcie_root=self._root(unit.pci_bus_id),
                    numa_node=unit.numa_node,
                )
            )
        return tuple(found)

    def _others(self) -> Mapping[GpuUuid, Load]:
        """Held by programs of the host and by queued work."""
        return load_of(
            [
                one.record
                for one in self._keeper.live().values()
                if one.record.container is None or not one.record.container.claim
            ]
        )

    def _root(self, bus_id: str | None) -> str | None:
        if bus_id is None:
            return None
        if bus_id not in self._roots:
            self._roots[bus_id] = self._pcie_root(bus_id)
        return self._roots[bus_id]

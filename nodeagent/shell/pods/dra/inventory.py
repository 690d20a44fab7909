"""Inventory for DRA claims: the facts of each GPU of this node, and its load by other holders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from nodeagent.core.dra.devices import (
    DeviceFacts,
    DeviceRules,
    Document,
    device,
    partition_device,
)
from nodeagent.core.dra.partitions import counters, partitions
from nodeagent.core.grants.placement import Load, load_of
from nodeagent.ports.gpus import GpuReading
from nodeagent.ports.mig import MigPlace, MigState
from nodeagent.shell.gpus.cuts import Cuts
from nodeagent.shell.gpus.readings import Gpus
from nodeagent.shell.grants.keeper import Keeper
from nodeagent.units import GpuUuid


@dataclass(frozen=True, slots=True)
class Excluded:
    """GPUs that the settings exclude."""

    uuids: frozenset[str] = frozenset()
    indexes: frozenset[int] = frozenset()


class ForClaims(Protocol):
    def __call__(self, gpu: GpuUuid) -> bool:
        """True if claims may have the GPU or its card; otherwise the device plugin has it."""


class Made(NamedTuple):
    """Devices and counters as published."""

    devices: list[Document]
    counters: list[Document]


class Inventory:
    def __init__(
        self,
        keeper: Keeper,
        gpus: Gpus,
        for_claims: ForClaims,
        rules: DeviceRules,
        excluded: Excluded,
        pcie_root: Callable[[str], str | None],
        cuts: Cuts | None = None,
    ) -> None:
        """`pcie_root` returns the PCIe root of a bus address. `cuts` creates MIG instances when
        claims request them; without it only existing instances are published."""
        self._cuts = cuts
        self.countless = False
        """True if the API server drops shared counters, without which no place can be published."""
        self.rules = rules
        self.excluded = excluded
        self._keeper = keeper
        self._gpus = gpus
        self._for_claims = for_claims
        self._pcie_root = pcie_root
        self._roots: dict[str, str | None] = {}

    def published(self) -> Made:
        found = [device(facts, self.rules) for facts in self.facts()]
        devices = [one for one in found if one is not None]
        counted: list[Document] = []
        for state in self._cut_cards():
            devices += self._places(state)
            counted.append(counters(state.gpu, state.profiles, self._beside_claims(state)))
        return Made(devices, counted)

    def facts(self) -> tuple[DeviceFacts, ...]:
        """Facts of cards, and of MIG instances that an administrator created."""
        others = self._others()
        capacities = {one.uuid: one for one in self._gpus.capacities()}
        found = []
        for unit in self._gpus.units():
            capacity = capacities[unit.uuid]
            if capacity.on_demand or not self._is_for_claims(unit):
                continue
            facts = self._facts(unit)
            found.append(
                replace(
                    facts,
                    memory_bytes=capacity.memory_bytes,
                    largest_bytes=capacity.largest_bytes,
                    slots=capacity.slots,
                    others=others.get(unit.uuid, Load()),
                )
            )
        return tuple(found)

    def _is_for_claims(self, unit: GpuReading) -> bool:
        card = unit.mig_card or unit.uuid
        return not (
            unit.uuid in self.excluded.uuids
            or card in self.excluded.uuids
            or unit.index in self.excluded.indexes
            or not self._for_claims(card)
        )

    def _facts(self, unit: GpuReading) -> DeviceFacts:
        return DeviceFacts(
            uuid=unit.uuid,
            index=unit.index,
            name=unit.name,
            memory_bytes=0,
            largest_bytes=0,
            slots=1,
            health=self._gpus.health(unit.uuid),
            withheld=self._gpus.withheld(unit.uuid),
            cordoned=self._gpus.is_cordoned(unit.uuid),
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

    # --- places of MIG instances that are created on demand -----------------------------------

    def _cut_cards(self) -> list[MigState]:
        if self._cuts is None or self.countless:
            return []
        return [
            state
            for state in self._cuts.cards.values()
            if state.enabled
            and state.gpu in self._gpus.readings
            and self._is_for_claims(self._gpus.readings[state.gpu])
        ]

    def _places(self, state: MigState) -> list[Document]:
        reading = self._gpus.readings[state.gpu]
        card = self._facts(reading)
        known = {one.name: one for one in state.profiles}
        return [
            partition_device(
                replace(
                    card,
                    uuid=GpuUuid(""),
                    card=state.gpu,
                    name=f"{reading.name} MIG {one.place.profile}",
                    mig_profile=one.place.profile,
                ),
                self.rules,
                one,
                known[one.place.profile],
            )
            for one in partitions(state.gpu, state.profiles)
        ]

    def _beside_claims(self, state: MigState) -> list[MigPlace]:
        """Places of instances that an administrator created, which are published as separate
        devices, and of instances that a holder other than a claim uses."""
        assert self._cuts is not None
        ours, held = self._cuts.ours(state.gpu), self._others()
        return [
            one.place
            for one in state.instances
            if one.place not in ours or any(device.uuid in held for device in one.devices)
        ]

    def _others(self) -> Mapping[GpuUuid, Load]:
        """Load by grants that belong to no claim: host programs, queued work, the device plugin."""
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

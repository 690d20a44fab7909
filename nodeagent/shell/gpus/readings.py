"""The GPUs as last read: inventory, health, and how old the reading is."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from nodeagent.core.gpus.health import (
    NODE_UNREADABLE,
    Health,
    HealthChange,
    Patient,
    examine,
    is_mismatch,
)
from nodeagent.core.gpus.health_policy import HealthPolicy
from nodeagent.core.gpus.mig import units
from nodeagent.core.grants import events as ev
from nodeagent.core.grants.placement import GpuCapacity, card_slots
from nodeagent.ports.gpus import CardProblem, GpuReading, NodeReading
from nodeagent.ports.views import EventKind, Finding
from nodeagent.units import MIB, Bytes, GpuUuid

log = logging.getLogger(__name__)


NO_CARD_SLOTS: Final[Mapping[str, int]] = MappingProxyType({})
_LEVELS: Final[Mapping[Health, str]] = {
    Health.DEGRADED: "warning",
    Health.UNHEALTHY: "critical",
    Health.LOST: "critical",
}


def health_event(change: HealthChange, index: int | None) -> tuple[str, str, dict[str, str]]:
    """Level, text and evidence of the event about a change of health."""
    name = "GPU" if index is None else f"GPU {index}"
    why = f": {change.reason}" if change.reason else ""
    text = f"{name} is {change.after.value}, was {change.before.value}{why}"
    evidence = {"gpu": change.uuid, "before": change.before.value, "after": change.after.value}
    return _LEVELS.get(change.after, "info"), text, evidence


class Gpus:
    def __init__(
        self,
        slots_per_gpu: int,
        memory_reserve_mib: int,
        memory_scaling: float = 1.0,
        policy: HealthPolicy | None = None,
        card_slots: Mapping[str, int] = NO_CARD_SLOTS,
    ) -> None:
        """`memory_scaling`: bytes promised for each byte of a card's; over 1 is overcommit.
        `policy`: what counts as sick; None: the built-in one. `card_slots`: by UUID or NVML index,
        where it is not `slots_per_gpu`."""
        self._slots = slots_per_gpu
        self._card_slots = card_slots
        self._scaling = memory_scaling
        self._reserve_bytes = memory_reserve_mib * MIB
        self.readings: dict[GpuUuid, GpuReading] = {}
        self.policy = policy or HealthPolicy()
        """May be replaced while the daemon runs."""
        self._patients: dict[GpuUuid, Patient] = {}
        self._card_of: dict[GpuUuid, GpuUuid] = {}
        """Card of each MIG instance."""
        self.health_changes: Counter[GpuUuid] = Counter()
        """Number of health changes of each GPU since the daemon started."""
        self.unread: tuple[CardProblem, ...] = ()
        """Cards that are there and were never read, so that they are not served."""
        self.without_xids: tuple[CardProblem, ...] = ()
        """Cards of which NVML reports no XID."""
        self.on_health: list[Callable[[HealthChange], object]] = []
        """Called with each change, in the order they happen."""
        self.driver_version: str | None = None
        self.error: str | None = "not read yet"
        self.nvml_version: str | None = None
        self.cuda_version: str | None = None
        self.xids: dict[GpuUuid, Counter[int]] = {}
        self.last_xid: dict[GpuUuid, int] = {}
        self.read_at_ns: int | None = None
        """CLOCK_MONOTONIC of the last good pass."""
        self.on_news: list[Callable[[EventKind, str, str], object]] = []
        """Called with kind, level and text of an event for `sluice events`."""
        self.on_driver: list[Callable[[], None]] = []
        """Called when another driver is there than before."""
        self.on_read: list[Callable[[], None]] = []
        """Called after every pass."""
        self._withheld: set[GpuUuid] = set()
        """Cards whose geometry is being changed, and instances to be destroyed: nothing is placed
        on them."""
        self._cordoned: frozenset[str] = frozenset()
        """Cards and instances that get no new pods, by the Node's annotation."""
        self.on_demand: frozenset[GpuUuid] = frozenset()
        """Instances that were created on request: only requests that name them are placed on
        them."""

    def take(self, reading: NodeReading, now_ns: int, unix_s: float = 0.0) -> None:
        """`now_ns` is CLOCK_MONOTONIC, `unix_s` for people."""
        if reading.error != self.error and reading.error is not None:
            self._news(EventKind.DRIVER, "warning", f"the GPUs cannot be read: {reading.error}")
        elif reading.error is None and self.error is not None and self.read_at_ns is not None:
            self._news(EventKind.DRIVER, "info", "the GPUs are read again")
        self.error = reading.error
        if reading.error is None:
            self.read_at_ns = now_ns
            if self.driver_version not in (None, reading.driver_version):
                text = f"the driver was {self.driver_version} and is {reading.driver_version} now"
                self._news(EventKind.DRIVER, "warning", text)
                for replaced in self.on_driver:
                    replaced()
            self.driver_version = reading.driver_version
            self.nvml_version = reading.nvml_version
            self.cuda_version = reading.cuda_version
            self._problems(reading)
        for gpu, code in reading.xid_events:
            self.xids.setdefault(gpu, Counter())[code] += 1
            self.last_xid[gpu] = code
            self._news(EventKind.GPU, "warning", f"GPU {gpu} reports XID {code}")
        seen = {card.uuid: card for card in reading.gpus}
        for uuid in self.readings.keys() | seen.keys():
            now: GpuReading | None = seen.get(uuid)
            if reading.error is not None:  # nothing was read: that says little about any one GPU
                now = replace(
                    self.readings[uuid],
                    error=reading.error if is_mismatch(reading.error) else NODE_UNREADABLE,
                    recovery_action=None,
                )
            xids = tuple(code for one, code in reading.xid_events if one == uuid)
            before = self._patients.get(uuid, Patient())
            after = examine(before, now, xids, self.policy, now_ns)
            self._patients[uuid] = after
            if after.health is not before.health:
                self._report_change(
                    HealthChange(uuid, before.health, after.health, after.reason, unix_s)
                )
            if now is not None and now.error is None:
                self.readings[uuid] = now
        self._card_of = {
            one.uuid: card.uuid for card in self.readings.values() for one in card.mig or ()
        }
        for call in self.on_read:
            call()

    def _problems(self, reading: NodeReading) -> None:
        """Record which cards cannot be served or give no XIDs, and report what changed."""
        unread = reading.unread + tuple(
            CardProblem(card.index, card.name, card.error, card.uuid)
            for card in reading.gpus
            if card.error is not None and card.uuid not in self.readings
        )
        for before, now, what in (
            (self.unread, unread, "cannot be read and is not served"),
            (self.without_xids, reading.without_xids, "reports no XIDs"),
        ):
            for one in now:
                if one not in before:
                    self._news(EventKind.GPU, "warning", f"{one.card} {what}: {one.reason}")
            for index in {one.index for one in before} - {one.index for one in now}:
                self._news(EventKind.GPU, "info", f"GPU {index}: resolved: it {what}")
        self.unread, self.without_xids = unread, reading.without_xids

    def findings(self) -> list[Finding]:
        """Cards with a problem that their health does not show, for `sluice doctor`."""
        return [
            *(
                Finding(
                    one.card,
                    "missing",
                    f"cannot be read by NVML and is not served: {one.reason}",
                    "the other cards are served; if it is lost, reset it or reboot; a card without"
                    " memory figures in NVML is not supported",
                )
                for one in self.unread
            ),
            *(
                Finding(
                    f"XIDs of {one.card}",
                    "warning",
                    f"NVML reports none: {one.reason}",
                    "its faults are seen by its counters and by failed readings only",
                )
                for one in self.without_xids
            ),
        ]

    def seen(self) -> ev.GpusSeen:
        return ev.GpusSeen(
            self.capacities(),
            {
                one.uuid: f"{one.card} cannot be read: {one.reason}"
                for one in self.unread
                if one.uuid is not None
            },
        )

    def withhold(self, gpu: GpuUuid, withheld: bool) -> None:
        """A card, with all its instances, or one instance: it takes no new work meanwhile."""
        (self._withheld.add if withheld else self._withheld.discard)(gpu)
        for call in self.on_read:
            call()

    def withheld(self, uuid: GpuUuid) -> bool:
        """A card, or an instance of one."""
        return not self._withheld.isdisjoint({uuid, self._card_of.get(uuid, uuid)})

    def cordon(self, uuids: frozenset[str]) -> None:
        """Cards and instances that get no new pods; what runs on them stays."""
        if uuids == self._cordoned:
            return
        self._cordoned = uuids
        for call in self.on_read:
            call()

    def is_cordoned(self, uuid: GpuUuid) -> bool:
        """A card, or an instance of one."""
        return not self._cordoned.isdisjoint({uuid, self._card_of.get(uuid, uuid)})

    def _news(self, kind: EventKind, level: str, text: str) -> None:
        if not self.on_news:
            log.warning("%s", text)
        for call in self.on_news:
            call(kind, level, text)

    def _report_change(self, change: HealthChange) -> None:
        self.health_changes[change.uuid] += 1
        for call in self.on_health:
            call(change)

    def patient(self, uuid: GpuUuid) -> Patient:
        """Health record of a card, or of the card that an instance belongs to."""
        return self._patients.get(self._card_of.get(uuid, uuid), Patient())

    def health(self, uuid: GpuUuid) -> Health:
        return self.patient(uuid).health

    def sorted(self) -> Sequence[GpuReading]:
        """The cards."""
        return sorted(self.readings.values(), key=lambda gpu: gpu.index)

    def units(self) -> tuple[GpuReading, ...]:
        """Units that grants are placed on: cards, and the MIG instances of cards in MIG mode."""
        return units(self.sorted())

    def slots_of(self, unit: GpuReading) -> int:
        """Most grants on a card or MIG instance at a time."""
        if unit.mig_profile:
            return self._slots
        return card_slots(self._card_slots, unit.uuid, unit.index, self._slots)

    def capacities(self) -> tuple[GpuCapacity, ...]:
        return tuple(
            GpuCapacity(
                uuid=gpu.uuid,
                index=gpu.index,
                name=gpu.name,
                memory_bytes=self._grantable(gpu.memory_total_bytes),
                physical_bytes=gpu.memory_total_bytes,
                slots=self.slots_of(gpu),
                mig_profile=gpu.mig_profile,
                healthy=self.patient(gpu.uuid).offered and not self.withheld(gpu.uuid),
                degraded=self.health(gpu.uuid) is Health.DEGRADED or self.is_cordoned(gpu.uuid),
                on_demand=gpu.uuid in self.on_demand,
            )
            for gpu in self.units()
        )

    def _grantable(self, total: Bytes) -> Bytes:
        return Bytes(max(0, int(total * self._scaling) - self._reserve_bytes))

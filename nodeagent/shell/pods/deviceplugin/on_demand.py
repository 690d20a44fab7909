"""MIG instances for pods that request a profile: the placements offered to the kubelet, and the
instances of a container that starts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from nodeagent.core.gpus.cuts import NoRoom
from nodeagent.core.kubelet.offers import Offer, mig_resource
from nodeagent.core.kubelet.places import best_first, numbers, place_offers
from nodeagent.ports.kubelet import Allocation, ContainerLimits, RetryLater, SlotId, parse_slot
from nodeagent.ports.ledger import LedgerFull
from nodeagent.ports.mig import MigPlace, MigState, MigUnavailable, Span
from nodeagent.shell.gpus.cuts import Cuts, MigWish
from nodeagent.shell.gpus.readings import Gpus
from nodeagent.units import GpuUuid


class OnDemand:
    def __init__(self, cuts: Cuts, gpus: Gpus) -> None:
        self.cuts = cuts
        self._gpus = gpus

    def offers(
        self, resource: str, rows: Sequence[Allocation], may_offer: Callable[[GpuUuid], bool]
    ) -> dict[str, list[Offer]]:
        """Offers by resource. `rows`: allocations that are given, or about to be."""
        found: dict[str, list[Offer]] = {}
        for state in self._cards():
            reading = self._gpus.readings.get(state.gpu)
            well = reading is not None and self._well(state.gpu) and may_offer(state.gpu)
            answered, taken = self._taken(state, rows)
            for profile, offered in place_offers(
                state.gpu,
                reading.numa_node if reading is not None else None,
                state.profiles,
                well,
                answered,
                taken,
            ).items():
                found.setdefault(mig_resource(resource, profile), []).extend(offered)
        return found

    def _cards(self) -> list[MigState]:
        """Cards in MIG mode, by the last reading."""
        return [
            one
            for one in self.cuts.cards.values()
            if one.enabled
            and (reading := self._gpus.readings.get(one.gpu)) is not None
            and reading.mig is not None
        ]

    def _well(self, card: GpuUuid) -> bool:
        return self._gpus.patient(card).offered and not self._gpus.withheld(card)

    def _taken(
        self, state: MigState, rows: Sequence[Allocation]
    ) -> tuple[set[MigPlace], list[MigPlace]]:
        """Places that the kubelet was given, and those where nothing else can be made."""
        known = numbers(state.profiles)
        answered: set[MigPlace] = set()
        waiting: set[MigPlace] = set()
        for row in rows:
            for slot in map(parse_slot, row.device_ids):
                if slot.gpu == state.gpu and slot.slot in known:
                    answered.add(known[slot.slot])
                    if row.grant is None:
                        waiting.add(known[slot.slot])
        ours, held = self.cuts.ours(state.gpu), self.cuts.held(state)
        there = [one.place for one in state.instances if one.place in held or one.place not in ours]
        return answered, [*there, *(one for one in waiting if one not in there)]

    def rank(self, ids: Sequence[str], rows: Sequence[Allocation]) -> Mapping[str, int]:
        """Preference among place ids; the lowest is taken first."""
        found: dict[str, int] = {}
        slots = {text: parse_slot(text) for text in ids}
        for state in self._cards():
            known = numbers(state.profiles)
            _, taken = self._taken(state, rows)
            there = [one.place for one in state.instances if one.place not in taken]
            order = best_first(state.profiles, there, taken)
            found |= {
                text: order[known[slot.slot]]
                for text, slot in slots.items()
                if slot.gpu == state.gpu and slot.slot in known
            }
        return found

    async def instances(
        self,
        promised: contextlib.AsyncExitStack,
        device_ids: Collection[str],
        limits: ContainerLimits,
        who: str,
    ) -> ContainerLimits:
        """Returns the limits with the instances that the pod is given. They are reserved until
        `promised` ends, and made where the kubelet counts them or anywhere on that card. Raises
        RetryLater, LedgerLost."""
        slots = [slot for slot in map(parse_slot, sorted(device_ids)) if slot.is_place]
        if not slots or limits.ask.gpu_uuids:  # or the queue has said which
            return limits
        found: list[GpuUuid] = []
        for slot in slots:
            try:
                wish = self._wish(slot)
                found.append(await promised.enter_async_context(self.cuts.instance(wish, who)))
            except (NoRoom, MigUnavailable, LedgerFull) as error:
                raise RetryLater(str(error)) from error
        return replace(limits, ask=replace(limits.ask, gpu_uuids=tuple(found)))

    def _wish(self, slot: SlotId) -> MigWish:
        state = self.cuts.cards.get(slot.gpu)
        place = numbers(state.profiles).get(slot.slot) if state is not None else None
        if state is None or place is None:
            raise NoRoom(f"{slot}: this node has no such MIG placement (any more)")
        others: tuple[Span, ...] = tuple(
            one.span
            for one in numbers(state.profiles).values()
            if one.profile == place.profile and one != place
        )
        return MigWish(place.profile, slot.gpu, (place.span, *others))

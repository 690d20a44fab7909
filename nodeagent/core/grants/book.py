"""The book of grants: holders, the waiting queue and registered processes; a reducer over the
events of `events.py`.

`handle(event)` changes the book and returns the instructions for the shell, in order. The shell
carries them out and feeds the results back as events. Any order of events is legal: one that no
longer applies changes nothing.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import replace
from typing import assert_never

from nodeagent.core.grants import events as ev
from nodeagent.core.grants.changing import (
    check_resident,
    check_share_is_back,
    resized,
    spilled,
)
from nodeagent.core.grants.placement import (
    GpuCapacity,
    Load,
    Placed,
    Unplaced,
    load_of,
    place,
)
from nodeagent.core.grants.spill import SpillSignal
from nodeagent.core.grants.states import NEXT, GrantMemory, Held, HeldMemory, Rules, Signal
from nodeagent.ports.clients import RefusalKind, Refused
from nodeagent.ports.ledger import GrantRecord, GrantState, Spill
from nodeagent.ports.processes import Process
from nodeagent.ports.regions import DeviceLimits
from nodeagent.units import (
    MAX_DEVICES,
    MAX_SLOTS,
    NO_CEILING,
    Bytes,
    GpuUuid,
    GrantId,
    RequestId,
    SharePolicy,
    SlotIndex,
)


class GrantBook:
    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        """May be replaced at run time; existing grants keep what they have."""
        self._gpus: tuple[GpuCapacity, ...] = ()
        self._unread: Mapping[GpuUuid, str] = {}
        self.grants: dict[GrantId, Held] = {}
        self.queue: list[ev.Asked] = []
        self._reported: dict[RequestId, tuple[int, str]] = {}

    def handle(self, event: ev.Event, now_ns: int = 0) -> list[ev.Instruction]:
        """Apply an event; no decision depends on the time.

        Raises Refused for a Resized, PauseSet, SpillMoved or Released that is impossible; the book
        is then unchanged.
        """
        match event:
            case ev.GpusSeen():
                return self._gpus_seen(event)
            case ev.Asked():
                return self._asked(event)
            case ev.AskEnded():
                return self._ask_ended(event)
            case ev.RegionReady():
                return self._region_ready(event)
            case ev.RegionFailed():
                return self._region_failed(event)
            case ev.RegionRemoved():
                return self._region_removed(event)
            case ev.OwnerGone():
                return self._owner_gone(event)
            case ev.SlotAsked():
                return self._slot_asked(event)
            case ev.SlotGone():
                return self._slot_gone(event)
            case ev.SlotMissed():
                return self._slot_missed(event)
            case ev.Resized():
                return self._resized(event)
            case ev.Lent():
                return self._lent(event)
            case ev.PauseSet():
                return self._pause_set(event)
            case ev.SpillMoved():
                return self._spill_moved(event)
            case ev.Released():
                return self._released(event)
            case ev.Restored():
                return self._restored(event)
            case _:
                assert_never(event)

    def memory(self) -> GrantMemory:
        return GrantMemory(
            self.rules,
            self._gpus,
            tuple(
                HeldMemory(
                    held.record,
                    held.owner_alive,
                    held.region,
                    tuple(held.slots.items()),
                    held.request,
                )
                for held in self.grants.values()
            ),
            tuple(self.queue),
            tuple((request, *status) for request, status in self._reported.items()),
        )

    @classmethod
    def of(cls, memory: GrantMemory) -> GrantBook:
        """Rebuild a book from its recorded state."""
        book = cls(memory.rules)
        book._gpus = memory.gpus
        for one in memory.grants:
            book.grants[one.record.grant] = Held(
                one.record, one.owner_alive, one.region, dict(one.slots), one.request
            )
        book.queue = list(memory.queue)
        book._reported = {request: (place, reason) for request, place, reason in memory.told}
        return book

    # --- questions ----------------------------------------------------------------------------

    @property
    def gpus(self) -> tuple[GpuCapacity, ...]:
        return self._gpus

    @property
    def boot_id(self) -> str:
        return self.rules.boot_id

    def loads(self) -> dict[GpuUuid, Load]:
        return load_of([held.record for held in self.grants.values()])

    def limits(self, record: GrantRecord) -> tuple[DeviceLimits, ...]:
        """Limits of each device. An elastic grant has no cap except a requested ceiling; its share
        is its weight."""
        hard = record.policy is SharePolicy.HARD
        elastic = record.policy is SharePolicy.ELASTIC
        ceiling = record.ceiling_ppm if elastic else NO_CEILING
        return tuple(
            DeviceLimits(
                gpu=device.gpu,
                memory_limit_bytes=device.memory_bytes,
                physical_bytes=device.physical_bytes,
                burst_ns=self.rules.burst_ns,
                inflight_ns=self.rules.inflight_ns,
                chunk_ns=self.rules.chunk_ns,
                share_ppm=device.share_ppm if hard else ceiling,
                paused=record.paused,
                revoked=record.state in (GrantState.DRAINING, GrantState.ENDING),
                managed_beyond=self.rules.managed_beyond,
                spilled=record.spill is not Spill.RESIDENT,
            )
            for device in record.devices
        )

    # --- requests -----------------------------------------------------------------------------

    def _gpus_seen(self, event: ev.GpusSeen) -> list[ev.Instruction]:
        self._unread = event.unread
        if event.gpus == self._gpus:
            return []
        self._gpus = event.gpus
        return self._serve_queue()

    def _asked(self, event: ev.Asked) -> list[ev.Instruction]:
        ask = event.ask
        reason = None
        kind = RefusalKind.INVALID
        if not 1 <= ask.gpus <= MAX_DEVICES or len(ask.gpu_uuids) > MAX_DEVICES:
            reason = f"a grant has 1 to {MAX_DEVICES} GPUs"
        elif event.grant in self.grants or any(event.request == e.request for e in self.queue):
            reason = "duplicate request"
        else:
            kind = RefusalKind.EXHAUSTED
            held = sum(h.record.owner.uid == event.owner.uid for h in self.grants.values())
            waits = sum(e.owner.uid == event.owner.uid for e in self.queue)
            if event.container is None and held + waits >= self.rules.max_grants_per_uid:
                reason = (
                    f"uid {event.owner.uid} holds or waits for {held + waits} grants,"
                    " the maximum (grants.max_grants_per_uid)"
                )
            elif event.may_wait and len(self.queue) >= self.rules.max_waiting:
                reason = f"{len(self.queue)} requests are waiting already (grants.max_waiting)"
        if reason is not None:
            return [ev.TellRefused(event.request, kind, reason)]
        self.queue.append(event)
        return self._serve_queue()

    def _serve_queue(self) -> list[ev.Instruction]:
        """First come, first served per GPU: a request that cannot be placed reserves its
        candidates."""
        out: list[ev.Instruction] = []
        loads = self.loads()
        blocked: set[GpuUuid] = set()
        waiting: list[ev.Asked] = []
        for event in self.queue:
            placed = self._over_slots(event) or place(
                event.ask, self._gpus, loads, blocked, self.rules.strategy, self._unread
            )
            if isinstance(placed, Placed):
                record = GrantRecord(
                    grant=event.grant,
                    name=event.ask.name,
                    policy=event.ask.policy,
                    devices=placed.devices,
                    owner=event.owner,
                    created_unix_s=event.created_unix_s,
                    boot_id=self.rules.boot_id,
                    driver_path=event.ask.driver_path,
                    nvml_path=event.ask.nvml_path,
                    command=event.ask.command,
                    priority=event.ask.priority,
                    ceiling_ppm=event.ask.ceiling_ppm,
                    gang=event.ask.gang,
                    trusted_group=event.ask.trusted_group,
                    container=event.container,
                )
                self.grants[record.grant] = Held(record, request=event.request)
                self._reported.pop(event.request, None)
                loads = self.loads()
                out += [ev.Store(record), ev.MakeRegion(record, self.limits(record))]
            elif event.may_wait and placed.kind is not RefusalKind.INVALID:
                waiting.append(event)
                blocked |= placed.candidates
                status = (len(waiting), placed.reason)
                if self._reported.get(event.request) != status:
                    self._reported[event.request] = status
                    out.append(ev.TellWaiting(event.request, *status))
            else:
                self._reported.pop(event.request, None)
                out.append(ev.TellRefused(event.request, placed.kind, placed.reason))
        self.queue = waiting
        return out

    def _over_slots(self, event: ev.Asked) -> Unplaced | None:
        """Limit one user's slots, so that others find some. Root is exempt; pods and queued work
        are limited by the cluster."""
        if event.owner.uid == 0 or event.container is not None or event.queued:
            return None
        slots = sum(gpu.slots for gpu in self._gpus)
        most = max(1, int(slots * self.rules.max_slots_ratio_per_uid))
        held = sum(
            len(h.record.devices)
            for h in self.grants.values()
            if h.record.owner.uid == event.owner.uid and h.record.container is None
        )
        wanted = len(event.ask.gpu_uuids) or event.ask.gpus
        if not slots or held + wanted <= most:
            return None
        return Unplaced(
            RefusalKind.INVALID if wanted > most else RefusalKind.EXHAUSTED,
            f"uid {event.owner.uid} holds {held} of this node's {slots} slots and may hold {most}"
            " (grants.max_slots_percent_per_uid)",
        )

    def _ask_ended(self, event: ev.AskEnded) -> list[ev.Instruction]:
        remaining = [e for e in self.queue if e.request != event.request]
        if len(remaining) < len(self.queue):
            _, reason = self._reported.pop(event.request, (0, "still waiting"))
            self.queue = remaining
            return [
                ev.TellRefused(event.request, RefusalKind.EXHAUSTED, f"timed out: {reason}"),
                *self._serve_queue(),
            ]
        for held in self.grants.values():
            # The client is gone, so nothing waits for this region.
            if held.request == event.request:
                held.request = None
                held.owner_alive = False
                return self._settle(held)
        return []

    # --- the region ---------------------------------------------------------------------------

    def _region_ready(self, event: ev.RegionReady) -> list[ev.Instruction]:
        held = self.grants.get(event.grant)
        if held is None or held.region or held.record.state is GrantState.ENDING:
            return []
        held.region = True
        out = self._move(held, Signal.READY)
        # It was released meanwhile: the region was made with open limits.
        if held.record.state is GrantState.DRAINING:
            out.append(ev.Publish(event.grant, self.limits(held.record)))
        if held.request is not None:
            out.append(ev.TellGranted(held.request, event.grant))
            held.request = None
        return out + self._settle(held)

    def _region_failed(self, event: ev.RegionFailed) -> list[ev.Instruction]:
        held = self.grants.get(event.grant)
        if held is None or held.region:
            return []
        out = self._move(held, Signal.FAILED)
        if not out:
            return []
        if held.request is not None:
            out.append(ev.TellRefused(held.request, RefusalKind.UNAVAILABLE, event.reason))
            held.request = None
        return [*out, ev.RemoveRegion(event.grant)]

    def _region_removed(self, event: ev.RegionRemoved) -> list[ev.Instruction]:
        held = self.grants.get(event.grant)
        if held is None or held.record.state is not GrantState.ENDING:
            return []
        out = self._move(held, Signal.REMOVED)
        del self.grants[event.grant]
        return out + self._serve_queue()

    # --- processes ----------------------------------------------------------------------------

    def _owner_gone(self, event: ev.OwnerGone) -> list[ev.Instruction]:
        held = self.grants.get(event.grant)
        if held is None or not held.owner_alive:
            return []
        held.owner_alive = False
        return self._settle(held)

    def _slot_asked(self, event: ev.SlotAsked) -> list[ev.Instruction]:
        held = self.grants.get(event.grant)
        if held is None or held.record.state is not GrantState.ACTIVE:
            return [ev.RefuseSlot(event.grant, errno.ESTALE)]
        if event.wanted is not None and 0 <= event.wanted < MAX_SLOTS:
            holder = held.slots.get(event.wanted)
            if holder is None and event.wanted in event.claimed:
                held.slots[event.wanted] = event.process
                return [ev.OwnSlot(event.grant, event.wanted, event.process, adopted=True)]
            if holder is not None and same_process(holder, event.process):
                return [ev.OwnSlot(event.grant, event.wanted, event.process, adopted=True)]
        # A new process would use memory that the spilled grant does not have.
        if held.record.spill is not Spill.RESIDENT:
            return [ev.RefuseSlot(event.grant, errno.EBUSY)]
        for index in range(MAX_SLOTS):
            slot = SlotIndex(index)
            if slot not in held.slots and slot not in event.claimed:
                held.slots[slot] = event.process
                return [ev.OwnSlot(event.grant, slot, event.process)]
        return [ev.RefuseSlot(event.grant, errno.ENOSPC)]

    def _slot_gone(self, event: ev.SlotGone) -> list[ev.Instruction]:
        held = self.grants.get(event.grant)
        if held is None or held.slots.pop(event.slot, None) is None:
            return []
        return [ev.ClearSlot(event.grant, event.slot), *self._settle(held)]

    def _slot_missed(self, event: ev.SlotMissed) -> list[ev.Instruction]:
        held = self.grants.get(event.grant)
        if held is None or held.slots.pop(event.slot, None) is None:
            return []
        return self._settle(held)

    # --- changes ------------------------------------------------------------------------------

    def _resized(self, event: ev.Resized) -> list[ev.Instruction]:
        held = self._live(event.grant)
        after = resized(held.record, event.ask, self._others(held.record), self._known())
        if after == held.record:
            return []
        held.record = after
        return [*self._republish(held), *self._serve_queue()]

    def _lent(self, event: ev.Lent) -> list[ev.Instruction]:
        held = self.grants.get(event.grant)
        if held is None or not held.region or held.record.state is not GrantState.ACTIVE:
            return []
        record = held.record
        if record.spill is not Spill.RESIDENT:  # A spilled grant returns with exactly what it had.
            return []
        loads, known = self.loads(), self._known()
        devices = []
        for device, wanted in zip(record.devices, event.memory_bytes, strict=True):
            load, gpu = loads.get(device.gpu, Load()), known.get(device.gpu)
            free = max(0, gpu.memory_bytes - load.memory_bytes) if gpu is not None else 0
            most = min(device.most_bytes, device.memory_bytes + free)
            bytes_ = Bytes(max(device.guaranteed_bytes, min(wanted, most)))
            devices.append(
                replace(device, memory_bytes=bytes_) if device.limit_bytes is not None else device
            )
        after = replace(record, devices=tuple(devices))
        if after == record:
            return []
        held.record = after
        return [*self._republish(held), *self._serve_queue()]

    def _pause_set(self, event: ev.PauseSet) -> list[ev.Instruction]:
        held = self._live(event.grant)
        record = held.record
        lent = event.paused and (event.lends or record.lent)
        if (record.paused, record.lent) == (event.paused, lent):
            return []
        if not event.paused:
            check_resident(record)
        if record.lent and not event.paused:
            check_share_is_back(record, self._others(record))
        held.record = replace(record, paused=event.paused, lent=lent)
        return [*self._republish(held), *(self._serve_queue() if lent else [])]

    def _spill_moved(self, event: ev.SpillMoved) -> list[ev.Instruction]:
        asked = event.signal in (SpillSignal.BEGIN, SpillSignal.RETURN)
        held = self._live(event.grant) if asked else self.grants.get(event.grant)
        if held is None:
            return []
        others, known = self._others(held.record), self._known()
        after = spilled(held.record, event, others, known)
        if after == held.record:
            return []
        held.record = after
        return [*self._republish(held), *self._serve_queue()]

    def _released(self, event: ev.Released) -> list[ev.Instruction]:
        held = self.grants.get(event.grant)
        if held is None:
            raise Refused(RefusalKind.NOT_FOUND, f"no grant {event.grant}")
        out = self._move(held, Signal.RELEASED)
        if out and held.region:
            out.append(ev.Publish(event.grant, self.limits(held.record)))
        return out + self._settle(held)

    # --- after a restart ----------------------------------------------------------------------

    def _restored(self, event: ev.Restored) -> list[ev.Instruction]:
        if event.record.grant in self.grants:
            return []
        record = event.record
        if record.state is GrantState.PREPARING:
            record = replace(record, state=GrantState.ACTIVE)
        held = Held(record, owner_alive=event.owner_alive, region=True, slots=dict(event.slots))
        self.grants[record.grant] = held
        out: list[ev.Instruction] = [] if record == event.record else [ev.Store(record)]
        if record.state is GrantState.ENDING:
            return [*out, ev.RemoveRegion(record.grant)]
        return out + self._settle(held)

    # --- helpers ------------------------------------------------------------------------------

    def _known(self) -> dict[GpuUuid, GpuCapacity]:
        return {gpu.uuid: gpu for gpu in self._gpus}

    def _others(self, record: GrantRecord) -> dict[GpuUuid, Load]:
        """Promises to all other grants."""
        return load_of([h.record for h in self.grants.values() if h.record.grant != record.grant])

    def _live(self, grant: GrantId) -> Held:
        held = self.grants.get(grant)
        if held is None or not held.region or held.record.state is not GrantState.ACTIVE:
            raise Refused(RefusalKind.NOT_FOUND, f"no live grant {grant}")
        return held

    def _move(self, held: Held, signal: Signal) -> list[ev.Instruction]:
        after = NEXT.get((held.record.state, signal))
        if after is None:
            return []
        held.record = replace(held.record, state=after)
        return [ev.Store(held.record)]

    def _republish(self, held: Held) -> list[ev.Instruction]:
        """Store first: after a crash in between, the restart publishes what the ledger has."""
        return [ev.Store(held.record), ev.Publish(held.record.grant, self.limits(held.record))]

    def _settle(self, held: Held) -> list[ev.Instruction]:
        """End the grant when no process can use it any more: no slot is taken, and the owner is
        gone or has released it."""
        released = held.record.state is GrantState.DRAINING
        if not held.region or held.slots or (held.owner_alive and not released):
            return []
        out = self._move(held, Signal.DESERTED)
        return [*out, ev.RemoveRegion(held.record.grant)] if out else []


def same_process(a: Process, b: Process) -> bool:
    return (a.pid, a.starttime_ticks) == (b.pid, b.starttime_ticks)

"""Changes of a live grant's record: computes the new record, or refuses with a reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from nodeagent.core.grants import events as ev
from nodeagent.core.grants.placement import GpuCapacity, Load, obstacle
from nodeagent.core.grants.quantities import format_bytes, format_share, memory_on
from nodeagent.core.grants.spill import NEXT, SpillSignal
from nodeagent.ports.clients import RefusalKind, Refused, ResizeAsk
from nodeagent.ports.ledger import DeviceShare, GrantRecord, Spill
from nodeagent.units import MAX_SLOTS, WHOLE_PPM, Bytes, GpuUuid, Ppm, SharePolicy

Others = Mapping[GpuUuid, Load]
"""Promises of the other grants on each GPU."""
Known = Mapping[GpuUuid, GpuCapacity]


def resized(record: GrantRecord, ask: ResizeAsk, others: Others, known: Known) -> GrantRecord:
    """The record after a resize. Raises Refused."""
    policy = ask.policy or record.policy
    devices = []
    for device in record.devices:
        gpu = known.get(device.gpu)
        if gpu is None:
            raise Refused(RefusalKind.UNAVAILABLE, f"{device.gpu} is not available now")
        bytes_ = memory_on(ask.memory, gpu.largest_bytes) if ask.memory else device.most_bytes
        # What it borrows above its request is lent when memory is free.
        if device.limit_bytes is not None:
            device = _borrowing(device, Bytes(min(bytes_, gpu.largest_bytes)))
            bytes_ = device.memory_bytes
        share = ask.share_ppm or device.share_ppm
        if policy is SharePolicy.EXCLUSIVE:
            share = Ppm(WHOLE_PPM)
        grows = bytes_ > device.memory_bytes or (
            policy is not SharePolicy.ELASTIC
            and (share > device.share_ppm or record.policy is not policy)
        )
        # A shrink is always possible, even on a GPU that is unhealthy or overcommitted.
        if grows:
            load = others.get(device.gpu, Load())
            usable = replace(gpu, healthy=True, slots=MAX_SLOTS)
            why = obstacle(usable, load, bytes_, share, policy, record.trusted_group)
            if why is not None:
                wanted = f"{format_bytes(bytes_)} and {format_share(share)} ({policy})"
                raise Refused(
                    RefusalKind.EXHAUSTED,
                    f"{wanted} do not fit on GPU {gpu.index} ({gpu.name}) beside the other"
                    f" grants: {why}",
                )
        devices.append(replace(device, memory_bytes=bytes_, share_ppm=share))
    priority = record.priority if ask.priority is None else ask.priority
    return replace(record, policy=policy, devices=tuple(devices), priority=priority)


def _borrowing(device: DeviceShare, limit: Bytes) -> DeviceShare:
    """The share with another limit."""
    request = Bytes(min(device.guaranteed_bytes, limit))
    memory = Bytes(min(device.memory_bytes, limit))
    return replace(device, memory_bytes=memory, request_bytes=request, limit_bytes=limit)


def check_share_is_back(record: GrantRecord, others: Others) -> None:
    """Raises Refused while other grants have the share of time that it lent."""
    if record.policy is not SharePolicy.HARD:
        return
    for device in record.devices:
        if others.get(device.gpu, Load()).hard_ppm + device.share_ppm > WHOLE_PPM:
            raise Refused(
                RefusalKind.EXHAUSTED,
                f"the share of time on {device.gpu} that it lent while paused is still in use",
            )


def check_resident(record: GrantRecord) -> None:
    """Raises Refused unless all its memory is on its GPUs."""
    if record.spill is not Spill.RESIDENT:
        raise Refused(
            RefusalKind.UNAVAILABLE,
            f"the memory of grant {record.grant[:8]} is {record.spill}: return it to"
            " its GPUs first",
        )


def spilled(record: GrantRecord, event: ev.SpillMoved, others: Others, known: Known) -> GrantRecord:
    """The record after a step of a spill or return; unchanged if the step does not apply.

    Raises Refused if the step was requested and is impossible.
    """
    signal = event.signal
    after = NEXT.get((record.spill, signal))
    if after is None:
        if signal in (SpillSignal.BEGIN, SpillSignal.RETURN):
            raise Refused(
                RefusalKind.UNAVAILABLE,
                f"the memory of grant {record.grant[:8]} is {record.spill} already",
            )
        return record
    if signal is SpillSignal.BEGIN and not record.paused:
        raise Refused(RefusalKind.UNAVAILABLE, f"grant {record.grant[:8]} is not paused")
    if signal is SpillSignal.BEGIN and record.trusted_group:
        raise Refused(
            RefusalKind.UNAVAILABLE,
            f"grant {record.grant[:8]} is one of a trusted group: the driver cannot checkpoint"
            " clients of an MPS server",
        )
    moved = replace(record, spill=after)
    if signal is SpillSignal.BEGIN:
        return replace(moved, spilled_bytes=event.bytes)
    if signal is SpillSignal.DONE:
        return replace(moved, spilled_unix_s=event.at_unix_s)
    if signal is SpillSignal.RETURN:
        _check_room_is_back(record, others, known)
        return replace(moved, lent=False)  # It owns all its promises again from here on.
    if after is Spill.RESIDENT:
        return replace(moved, spilled_unix_s=0.0, spilled_bytes=())
    return moved


def _check_room_is_back(record: GrantRecord, others: Others, known: Known) -> None:
    """Raises Refused while other grants have what it gave up. It is bound to its GPUs, because a
    driver restores a checkpoint only where it was made."""
    for device in record.devices:
        gpu = known.get(device.gpu)
        if gpu is None:
            raise Refused(RefusalKind.UNAVAILABLE, f"{device.gpu} is not available now")
        load = others.get(device.gpu, Load())
        why = obstacle(gpu, load, device.memory_bytes, device.share_ppm, record.policy)
        if why is not None:
            wanted = f"{format_bytes(device.memory_bytes)} and {format_share(device.share_ppm)}"
            raise Refused(
                RefusalKind.EXHAUSTED,
                f"{wanted} ({record.policy}) are not free on GPU {gpu.index} ({gpu.name}), where it"
                f" was: {why}",
            )

"""What a change makes of the record of a grant that lives, or why it cannot be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from nodeagent.core.grants.placement import GpuCapacity, Load, obstacle
from nodeagent.core.grants.quantities import format_bytes, format_share, memory_on
from nodeagent.ports.clients import RefusalKind, Refused, ResizeAsk
from nodeagent.ports.ledger import DeviceShare, GrantRecord
from nodeagent.units import MAX_SLOTS, WHOLE_PPM, Bytes, GpuUuid, Ppm, SharePolicy

Others = Mapping[GpuUuid, Load]
"""What the other grants were promised of each GPU."""
Known = Mapping[GpuUuid, GpuCapacity]


def resized(record: GrantRecord, ask: ResizeAsk, others: Others, known: Known) -> GrantRecord:
    """Raises Refused."""
    policy = ask.policy or record.policy
    devices = []
    for device in record.devices:
        gpu = known.get(device.gpu)
        if gpu is None:
            raise Refused(RefusalKind.UNAVAILABLE, f"{device.gpu} is not known right now")
        bytes_ = memory_on(ask.memory, gpu.largest_bytes) if ask.memory else device.most_bytes
        if device.limit_bytes is not None:  # what it borrows beyond is lent where it is free
            device = _borrowing(device, Bytes(min(bytes_, gpu.largest_bytes)))
            bytes_ = device.memory_bytes
        share = ask.share_ppm or device.share_ppm
        if policy is SharePolicy.EXCLUSIVE:
            share = Ppm(WHOLE_PPM)
        grows = bytes_ > device.memory_bytes or (
            policy is not SharePolicy.ELASTIC
            and (share > device.share_ppm or record.policy is not policy)
        )
        # Giving back is always possible, even on a GPU that is unwell or over-promised.
        if grows:
            load = others.get(device.gpu, Load())
            why = obstacle(replace(gpu, healthy=True, slots=MAX_SLOTS), load, bytes_, share, policy)
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
    """With another limit."""
    request = Bytes(min(device.guaranteed_bytes, limit))
    memory = Bytes(min(device.memory_bytes, limit))
    return replace(device, memory_bytes=memory, request_bytes=request, limit_bytes=limit)


def check_share_is_back(record: GrantRecord, others: Others) -> None:
    """Raises Refused while others have the share it lent."""
    if record.policy is not SharePolicy.HARD:
        return
    for device in record.devices:
        if others.get(device.gpu, Load()).hard_ppm + device.share_ppm > WHOLE_PPM:
            raise Refused(
                RefusalKind.EXHAUSTED,
                f"the time it lent on {device.gpu} while paused is still taken",
            )

"""Reads the annotation that resizes a running pod: `resize.sluice.dev/CONTAINER: "gpumem=8192
gpucores=40"`. Kubernetes resizes CPU and memory of a running pod in place, and no other resource,
so ours are requested this way.

Units are those of the pod's resources: `gpumem` in memory_factor MiB, `gpumem-percentage` and
`gpucores` in percent. An amount that is not named stays as the pod requested it; without the
annotation all of them do. Quota was counted for the pod's requests, so by default (`down`) nothing
above them is given: `on` is for clusters where the quota counts the annotation, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nodeagent.core.grants.quantities import format_bytes, format_share, memory_on
from nodeagent.core.kubelet.pod_limits import parse_quantity
from nodeagent.ports.clients import GrantAsk, MemoryAsk, ResizeAsk
from nodeagent.ports.kubelet import PermanentError
from nodeagent.ports.ledger import GrantRecord
from nodeagent.units import MIB, Bytes, Ppm, SharePolicy
from sluicecommon.hami.names import ResourceNames
from sluicecommon.pod_annotations import (
    CORES,
    MEMORY,
    PERCENT,
    REQUEST_PREFIX,
    RESIZE_PREFIX,
    words,
)


@dataclass(frozen=True, slots=True)
class ResizeRequest:
    """Requested limits of one container; None means as it was created."""

    memory: MemoryAsk | None = None
    share_ppm: Ppm | None = None


def resize_texts(annotations: Mapping[str, str]) -> dict[str, str]:
    """The annotation's text by container, not parsed yet."""
    return {
        name.removeprefix(RESIZE_PREFIX): text
        for name, text in annotations.items()
        if name.startswith(RESIZE_PREFIX)
    }


def guaranteed(
    annotations: Mapping[str, str], container: str, names: ResourceNames
) -> MemoryAsk | None:
    """The guaranteed part of a container's memory; None if all is guaranteed. Raises
    PermanentError."""
    text = annotations.get(f"{REQUEST_PREFIX}{container}")
    if text is None:
        return None
    request = parse_resize(container, text, names, REQUEST_PREFIX)
    if request.memory is None or request.share_ppm is not None:
        raise PermanentError(
            f"annotation {REQUEST_PREFIX}{container}: {MEMORY} or {PERCENT}, and nothing else"
        )
    return request.memory


def parse_resize(
    container: str, text: str, names: ResourceNames, prefix: str = RESIZE_PREFIX
) -> ResizeRequest:
    """Parse one annotation. Raises PermanentError."""
    where = f"annotation {prefix}{container}"
    try:
        amounts = {name: _whole(where, name, amount) for name, amount in words(text).items()}
    except ValueError as error:
        raise PermanentError(f"{where}{error}") from None
    memory = None
    if MEMORY in amounts:
        memory = MemoryAsk(amount_bytes=Bytes(amounts[MEMORY] * names.memory_factor * MIB))
    elif PERCENT in amounts:
        memory = MemoryAsk(part_ppm=Ppm(_percent(where, PERCENT, amounts[PERCENT], 100)))
    share = Ppm(_percent(where, CORES, amounts[CORES], 99)) if CORES in amounts else None
    return ResizeRequest(memory, share)


def _whole(where: str, name: str, amount: str) -> int:
    try:
        value = parse_quantity(amount)
    except ValueError as error:
        raise PermanentError(f"{where}: {name}: {error}") from error
    if value.denominator != 1 or not 0 < value <= 1 << 40:
        raise PermanentError(
            f"{where}: {name}: expected a whole number above 0, got {amount[:40]!r}"
        )
    return int(value)


def _percent(where: str, name: str, percent: int, most: int) -> int:
    if percent > most:
        raise PermanentError(f"{where}: {name}: {percent} is more than {most} percent")
    return percent * 10_000


def to_ask(
    record: GrantRecord, made: GrantAsk, request: ResizeRequest, more: bool
) -> ResizeAsk | None:
    """The resize that gives the grant the requested limits, or its original ones; None if it has
    them already.

    `more` allows limits above the original ones. Raises PermanentError.
    """
    if request.share_ppm is not None and made.policy is SharePolicy.EXCLUSIVE:
        raise PermanentError(f"{CORES}: the pod's GPUs are exclusive, with all of their time")
    memory = request.memory or made.memory
    share = request.share_ppm or made.share_ppm
    if not more:
        _not_above(record, made, memory, share)
    same = all(
        memory_on(memory, device.physical_bytes) == device.most_bytes
        and (device.share_ppm == share or made.policy is SharePolicy.EXCLUSIVE)
        for device in record.devices
    )
    if same:
        return None
    return ResizeAsk(
        memory=memory, share_ppm=None if made.policy is SharePolicy.EXCLUSIVE else share
    )


def _not_above(record: GrantRecord, made: GrantAsk, memory: MemoryAsk, share: Ppm) -> None:
    how = 'the pod was made with; kubelet.resize = "on" allows more'
    for device in record.devices:
        first = memory_on(made.memory, device.physical_bytes)
        wanted = memory_on(memory, device.physical_bytes)
        if wanted > first:
            raise PermanentError(
                f"{format_bytes(wanted)} is more than the {format_bytes(first)} {how}"
            )
    if share > made.share_ppm:
        raise PermanentError(
            f"{format_share(share)} is more than the {format_share(made.share_ppm)} {how}"
        )


def in_words(record: GrantRecord) -> str:
    """Describe what a grant has, for people."""
    device = record.devices[0]
    each = " each" if len(record.devices) > 1 else ""
    return f"{format_bytes(device.memory_bytes)} and {format_share(device.share_ppm)}{each}"

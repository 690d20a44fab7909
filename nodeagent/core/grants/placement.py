"""Chooses the GPUs of a grant on one node, or explains what would have to change.

A GPU fits if it is healthy and has a free slot, enough unpromised memory and room for the share.
Hard shares are promises, so together they stay within the whole GPU; elastic shares are weights and
may add up to more. An exclusive grant needs a GPU without other grants and keeps it so; the grants
of a trusted group share one with each other only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from nodeagent.core.grants.quantities import (
    format_bytes,
    format_memory_ask,
    format_share,
    memory_on,
)
from nodeagent.ports.clients import GrantAsk, RefusalKind
from nodeagent.ports.ledger import DeviceShare, GrantRecord, Spill
from nodeagent.units import WHOLE_PPM, Bytes, GpuUuid, Ppm, SharePolicy


@dataclass(frozen=True, slots=True)
class GpuCapacity:
    """A GPU as placement sees it."""

    uuid: GpuUuid
    index: int
    name: str
    memory_bytes: Bytes
    """Grantable to all grants together: the card's memory less the configured reserve; more than
    the card has if memory is overcommitted."""
    physical_bytes: Bytes
    slots: int
    mig_profile: str = ""
    """Profile of a MIG instance, such as 1g.10gb; empty for a whole card."""
    healthy: bool = True
    degraded: bool = False
    """It works, but is used after the others."""
    on_demand: bool = False
    """A MIG instance that was created for one request; only a request that names it gets it."""

    @property
    def largest_bytes(self) -> Bytes:
        """Most memory that one grant can have: never more than the card."""
        return min(self.memory_bytes, self.physical_bytes)


def card_slots(given: Mapping[str, int], uuid: str, index: int, otherwise: int) -> int:
    """Slots of a card: those given for its UUID, else for its NVML index, else `otherwise`."""
    return given.get(uuid, given.get(str(index), otherwise))


@dataclass(frozen=True, slots=True)
class Load:
    """Promises on one GPU."""

    memory_bytes: int = 0
    hard_ppm: int = 0
    share_ppm: int = 0
    grants: int = 0
    lent_bytes: int = 0
    """Part of memory_bytes that grants have above their guarantee."""
    exclusive: bool = False
    """True if one grant holds it exclusively."""
    groups: frozenset[str] = frozenset()
    """Trusted groups of its grants; the empty one stands for those in none."""

    @property
    def closed(self) -> bool:
        """True if no grant may be added but those of a trusted group that holds it."""
        return self.exclusive or bool(self.groups - {""})


@dataclass(frozen=True, slots=True)
class Placed:
    devices: tuple[DeviceShare, ...]


@dataclass(frozen=True, slots=True)
class Unplaced:
    kind: RefusalKind
    reason: str
    candidates: frozenset[GpuUuid] = frozenset()
    """GPUs that would fit if they were empty: a waiting request reserves them."""


def load_of(records: Sequence[GrantRecord]) -> dict[GpuUuid, Load]:
    """Promises of all records that count; a spilled one has given up all of its room."""
    loads: dict[GpuUuid, Load] = {}
    for record in records:
        if record.spill is Spill.SPILLED:
            continue
        hard = record.policy is SharePolicy.HARD
        for device in record.devices:
            was = loads.get(device.gpu, Load())
            loads[device.gpu] = Load(
                memory_bytes=was.memory_bytes + device.memory_bytes,
                hard_ppm=was.hard_ppm + (device.share_ppm if hard and not record.lent else 0),
                share_ppm=was.share_ppm + (0 if record.lent else device.share_ppm),
                grants=was.grants + 1,
                lent_bytes=was.lent_bytes + max(0, device.memory_bytes - device.guaranteed_bytes),
                exclusive=was.exclusive or record.policy is SharePolicy.EXCLUSIVE,
                groups=was.groups | {record.trusted_group},
            )
    return loads


def obstacle(
    gpu: GpuCapacity,
    load: Load,
    need_bytes: int,
    share_ppm: int,
    policy: SharePolicy,
    group: str = "",
) -> str | None:
    """The reason why this GPU cannot take the request of a grant in that trusted group, with what
    it has; None if it can."""
    if not gpu.healthy:
        return "not healthy"
    if need_bytes > gpu.largest_bytes:
        return f"has {format_bytes(gpu.largest_bytes)} in all"
    if load.exclusive:
        return "held by an exclusive grant"
    if load.groups - {group}:
        return "shared by grants outside of its trusted group" if group else "a trusted group's"
    if policy is SharePolicy.EXCLUSIVE and load.grants:
        return f"shared by {load.grants} grant{'s' if load.grants > 1 else ''}"
    missing = []
    if load.grants >= gpu.slots:
        missing.append(f"all {gpu.slots} slots taken")
    free_bytes = max(0, gpu.memory_bytes - load.memory_bytes)
    if need_bytes > free_bytes:
        lent = f" ({format_bytes(load.lent_bytes)} more is lent)" if load.lent_bytes else ""
        missing.append(f"{format_bytes(free_bytes)} of {format_bytes(gpu.memory_bytes)} free{lent}")
    if policy is SharePolicy.HARD and load.hard_ppm + share_ppm > WHOLE_PPM:
        missing.append(f"{format_share(WHOLE_PPM - load.hard_ppm)} of its time free")
    return ", ".join(missing) or None


def most_on(ask: GrantAsk, gpu: GpuCapacity) -> Bytes:
    """Most memory that the grant may come to have on this GPU."""
    if not ask.amounts:
        return memory_on(ask.memory, gpu.largest_bytes)
    amount = ask.amounts[ask.gpu_uuids.index(gpu.uuid)]
    return gpu.largest_bytes if amount is None else amount


def place(
    ask: GrantAsk,
    gpus: Sequence[GpuCapacity],
    loads: Mapping[GpuUuid, Load],
    blocked: Collection[GpuUuid] = (),
    strategy: str = "pack",
    unread: Mapping[GpuUuid, str] = MappingProxyType({}),
) -> Placed | Unplaced:
    """Place a request. `blocked` GPUs are reserved for requests that waited longer; `unread` are
    cards that cannot be served, with the reason."""
    known = {gpu.uuid: gpu for gpu in gpus}
    if not known and not unread.keys() & set(ask.gpu_uuids):
        return Unplaced(
            RefusalKind.UNAVAILABLE, "no GPU is available on this node, see `sluice doctor`"
        )
    if ask.gpu_uuids:
        for uuid in ask.gpu_uuids:
            if uuid in unread:
                return Unplaced(
                    RefusalKind.UNAVAILABLE,
                    f"{unread[uuid]}, so it is not served: see `sluice doctor`",
                )
        unknown = [uuid for uuid in ask.gpu_uuids if uuid not in known]
        if unknown:
            have = ", ".join(known) or "none"
            return Unplaced(
                RefusalKind.INVALID,
                f"no GPU {', '.join(map(repr, unknown))} here; this node has: {have}",
            )
        if len(set(ask.gpu_uuids)) != len(ask.gpu_uuids):
            return Unplaced(RefusalKind.INVALID, "the same GPU is named twice")
        pool, count = [known[uuid] for uuid in ask.gpu_uuids], len(ask.gpu_uuids)
    else:
        pool = [gpu for gpu in gpus if gpu.uuid not in ask.not_gpu_uuids and not gpu.on_demand]
        count = ask.gpus

    fitting: list[GpuCapacity] = []
    obstacles: list[str] = []
    candidates: set[GpuUuid] = set()
    for gpu in pool:
        most = most_on(ask, gpu)
        need = most if ask.request is None else memory_on(ask.request, gpu.largest_bytes)
        if most > gpu.largest_bytes or need > most:
            need = most  # It can never fit, and the reason says so.
        load = loads.get(gpu.uuid, Load())
        why = obstacle(gpu, load, need, ask.share_ppm, ask.policy, ask.trusted_group)
        if gpu.healthy and need <= gpu.largest_bytes:
            candidates.add(gpu.uuid)
        if why is None and gpu.uuid in blocked:
            why = "reserved for a request that waits longer"
        if why is None:
            fitting.append(gpu)
        else:
            obstacles.append(f"GPU {gpu.index} ({gpu.name}): {why}")
    if len(fitting) < count:
        wanted = (
            f"{count} GPU{'s' if count > 1 else ''} with {format_memory_ask(ask.memory)} and"
            f" {format_share(ask.share_ppm)} of the time ({ask.policy}) wanted"
        )
        never = len(candidates) < count and all(gpu.healthy for gpu in pool)
        kind = RefusalKind.INVALID if never else RefusalKind.EXHAUSTED
        reason = (
            f"{wanted}, {len(fitting)} can give it now: {'; '.join(obstacles) or 'no more GPUs'}"
        )
        return Unplaced(kind, reason, frozenset(candidates))

    if not ask.gpu_uuids:
        sign = 1 if strategy == "pack" else -1

        def emptiness(gpu: GpuCapacity) -> tuple[bool, float, int, int]:
            load = loads.get(gpu.uuid, Load())
            free = gpu.memory_bytes - load.memory_bytes
            return (gpu.degraded, sign * free, -sign * load.share_ppm, gpu.index)

        fitting.sort(key=emptiness)
    return Placed(
        tuple(
            DeviceShare(
                gpu=gpu.uuid,
                physical_bytes=gpu.physical_bytes,
                share_ppm=Ppm(ask.share_ppm),
                **_memory(ask, gpu),
            )
            for gpu in fitting[:count]
        )
    )


def _memory(ask: GrantAsk, gpu: GpuCapacity) -> dict[str, Bytes]:
    """Memory fields of a share; a grant that may borrow begins with its guarantee."""
    most = most_on(ask, gpu)
    if ask.request is None:
        return {"memory_bytes": most}
    request = min(most, memory_on(ask.request, gpu.largest_bytes))
    return {"memory_bytes": request, "request_bytes": request, "limit_bytes": most}

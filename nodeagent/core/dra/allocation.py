"""Reads the allocation of a ResourceClaim (`resource.k8s.io/v1`) on this node and turns it into the
requests for its grants.

The scheduler wrote the allocation, but it is read like any other input from outside: bounded, every
field checked. The scheduler has rounded and summed each share by the request policy that we
published, so nothing is rounded again here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from nodeagent.core.dra.configuration import merged, shown
from nodeagent.core.kubelet.pod_limits import YIELDING_PPM, parse_quantity
from nodeagent.ports.clients import GrantAsk, MemoryAsk
from nodeagent.ports.dra.claims import (
    DRIVER,
    ClaimAllocation,
    ClaimRef,
    NoAllocation,
    Share,
)
from nodeagent.ports.kubelet import POD_UID, PodIdentity
from nodeagent.units import MAX_DEVICES, WHOLE_PPM, Bytes, GpuUuid, PodUid, Ppm, SharePolicy

MAX_RESULTS: Final = 32
"""Kubernetes' own bound (AllocationResultsMaxSize)."""
LONGEST: Final = 253
EXTENDED: Final = "resource.kubernetes.io/extended-resource-claim"
"""Annotation of a claim that the scheduler created for a pod's extended resources; its requests are
named container-N-request-M."""


def read_claim(document: Mapping[str, Any], claim: ClaimRef, pool: str) -> ClaimAllocation:
    """Read what a claim was allocated from this node's `pool`. Raises NoAllocation."""
    try:
        head, status = document["metadata"], document.get("status") or {}
        devices = (status.get("allocation") or {}).get("devices") or {}
        results, entries = devices.get("results") or (), devices.get("config") or ()
        ours = [one for one in results if one["driver"] == DRIVER]
        if len(results) > MAX_RESULTS or len(entries) > 2 * MAX_RESULTS:
            raise NoAllocation(
                f"{len(results)} results and {len(entries)} configurations: too many"
            )
        if not ours:
            raise NoAllocation(f"no device of {DRIVER} is allocated to it")
        shares = tuple(_share(one, entries, pool) for one in ours)
        annotations = head.get("annotations") or {}
        return ClaimAllocation(
            claim,
            shares,
            _only_pod(head, status, claim.namespace),
            annotations.get(EXTENDED) == "true",
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise NoAllocation(f"not a ResourceClaim of resource.k8s.io/v1: {error!r}") from None


def _share(result: Mapping[str, Any], entries: Sequence[Any], pool: str) -> Share:
    request, device = _text(result["request"]), _text(result["device"])
    if result["pool"] != pool:
        raise NoAllocation(
            f"request {request} is allocated from pool {shown(result['pool'])}, this node's is"
            f" {pool}"
        )
    if result.get("adminAccess"):
        raise NoAllocation(
            f"request {request} uses adminAccess, which {DRIVER} does not support: monitor GPUs"
            " through the agent's metrics, or on the host"
        )
    parent = request.partition("/")[0]  # a firstAvailable result is named request/alternative
    consumed = result.get("consumedCapacity")
    memory = _amount(consumed, "memory", request) if consumed else None
    cores = _amount(consumed, "cores", request) if consumed else None
    if (memory is None) != (cores is None):
        raise NoAllocation(f"request {request}: consumedCapacity must have both memory and cores")
    if cores is not None and cores > 100:
        raise NoAllocation(f"request {request}: {cores} cores are more than a GPU's 100")
    return Share(
        parent,
        pool,
        device,
        _text(result.get("shareID") or ""),
        None if memory is None else Bytes(memory),
        cores,
        merged(entries, request, parent),
    )


def _amount(consumed: Mapping[str, Any], name: str, request: str) -> int | None:
    text = consumed.get(name, consumed.get(f"{DRIVER}/{name}"))
    if text is None:
        return None
    try:
        value = parse_quantity(str(text))
    except ValueError as error:
        raise NoAllocation(f"request {request}: consumedCapacity.{name}: {error}") from None
    if value.denominator != 1 or not 0 <= value < 1 << 60:
        raise NoAllocation(
            f"request {request}: consumedCapacity.{name}: expected a whole number,"
            f" got {shown(text)}"
        )
    return int(value)


def _only_pod(
    head: Mapping[str, Any], status: Mapping[str, Any], namespace: str
) -> PodIdentity | None:
    """The pod that owns the claim for the claim's whole life: it was created for that pod and is
    reserved for it. None for any other claim."""
    owner = next((one for one in head.get("ownerReferences") or () if one.get("controller")), None)
    if owner is None or owner.get("kind") != "Pod" or owner.get("apiVersion") != "v1":
        return None
    uid = _text(owner["uid"])
    for one in status.get("reservedFor") or ():
        if one.get("resource") == "pods" and one.get("uid") == uid and POD_UID.fullmatch(uid):
            return PodIdentity(PodUid(uid), namespace, _text(one["name"]))
    return None


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > LONGEST:
        raise TypeError(f"expected a string, got {shown(value)}")
    return value


# --- from shares to grants ------------------------------------------------------------------------


def parts_of(allocation: ClaimAllocation) -> tuple[tuple[int, ...], ...]:
    """Group the shares into grants: one tuple of indexes into the allocation's shares for each
    grant."""
    found: dict[str, list[int]] = {}
    for index, share in enumerate(allocation.shares):
        key = share.request.partition("-request-")[0] if allocation.by_container else ""
        found.setdefault(key, []).append(index)
    return tuple(map(tuple, found.values()))


def grant_ask(
    allocation: ClaimAllocation,
    part: Sequence[int],
    units: Mapping[str, GpuUuid],
    elastic: bool,
    max_priority: int = 0,
) -> GrantAsk:
    """Build the request for one grant of a claim.

    `units` maps each device name to its GPU; `elastic` makes the share of time a weight unless the
    claim's configuration has a policy. A priority above `max_priority` is refused unless the
    DeviceClass sets it. Raises NoAllocation.
    """
    shares = [allocation.shares[index] for index in part]
    gpus: dict[GpuUuid, _Amount] = {}
    for share in shares:
        unit = units.get(share.device)
        if unit is None:
            raise NoAllocation(f"device {share.device} does not exist on this node (any more)")
        gpus[unit] = _together(gpus.get(unit), share)
    if len(gpus) > MAX_DEVICES:
        raise NoAllocation(f"{len(gpus)} GPUs: one grant has {MAX_DEVICES} at most")
    if len({share.config for share in shares}) > 1:
        raise NoAllocation(
            f"requests {', '.join(dict.fromkeys(s.request for s in shares))} of one claim have"
            " different configurations: a container has one grant, so they must be the same"
        )
    if len({amount.share_ppm for amount in gpus.values()}) > 1:
        raise NoAllocation(
            "the shares have different cores on different GPUs: a claim must have the same on each"
            " (count with distinctAttribute sluice.dev/uuid, or the same cores in every request)"
        )
    share_ppm = next(iter(gpus.values())).share_ppm
    config, whole = shares[0].config, all(one.memory_bytes is None for one in shares)
    if not whole and config.policy is SharePolicy.EXCLUSIVE:
        raise NoAllocation(
            "policy exclusive needs whole GPUs, without other claims: this node allocates"
            ' them with mode = "exclusive"'
        )
    if config.priority > max_priority and not config.class_priority and config.priority > 0:
        raise NoAllocation(
            f"priority {config.priority} is above this node's highest for claims, {max_priority}"
            " (kubelet.max_priority); a DeviceClass may set more"
        )
    policy = config.policy or _policy(share_ppm, whole, elastic)
    if config.ceiling_percent and policy is not SharePolicy.ELASTIC:
        raise NoAllocation(
            f"ceilingPercent needs policy elastic; with {policy} the requested cores are the cap"
        )
    if config.ceiling_percent and config.ceiling_percent * 10_000 < share_ppm != WHOLE_PPM:
        raise NoAllocation(
            f"ceilingPercent {config.ceiling_percent} is below the {share_ppm // 10_000} cores"
            " requested"
        )
    if policy is SharePolicy.HARD and share_ppm == 0:
        raise NoAllocation("policy hard needs cores: request capacity cores of 1 to 100")
    if share_ppm == 0:  # As for pods.
        share_ppm = YIELDING_PPM
    claim, pod_name = allocation.claim, allocation.pod.name if allocation.pod else "shared"
    return GrantAsk(
        gpus=len(gpus),
        memory=MemoryAsk(part_ppm=Ppm(WHOLE_PPM)),
        share_ppm=share_ppm,
        policy=policy,
        name=f"{claim.namespace}/{pod_name}/{claim.name}",
        gpu_uuids=tuple(gpus),
        priority=config.priority if config.class_priority else min(config.priority, max_priority),
        amounts=tuple(one.memory_bytes for one in gpus.values()),
        ceiling_ppm=Ppm(config.ceiling_percent * 10_000),
        gang=config.gang,
    )


class _Amount(NamedTuple):
    """The amount requested from one GPU."""

    memory_bytes: Bytes | None
    """All of the GPU's memory if None."""
    share_ppm: Ppm


def _together(before: _Amount | None, share: Share) -> _Amount:
    """Add two shares of one GPU: together they are one larger share."""
    if share.memory_bytes is None or share.cores_percent is None:
        return _Amount(None, Ppm(WHOLE_PPM))
    had = (before.memory_bytes or 0, before.share_ppm) if before else (0, 0)
    ppm = had[1] + share.cores_percent * 10_000
    return _Amount(Bytes(had[0] + share.memory_bytes), Ppm(min(ppm, WHOLE_PPM)))


def _policy(share_ppm: int, whole: bool, elastic: bool) -> SharePolicy:
    if whole:
        return SharePolicy.EXCLUSIVE
    return SharePolicy.ELASTIC if share_ppm == 0 or elastic else SharePolicy.HARD

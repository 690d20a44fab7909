"""Meaning of a container's resource requests, with HAMi's names: `nvidia.com/gpu` (number of GPUs),
`gpumem` (MiB on each), `gpumem-percentage`, `gpucores` (percent of each GPU's time), `priority` (0
goes before 1).

A request that is missing takes the node's default: the whole memory, and a share of the time that
yields to others (HAMi's meaning of 0 cores): elastic, with the weight of one core. 100 cores are an
exclusive GPU, as with HAMi. The annotation `sluice.dev/share-policy` takes precedence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from types import MappingProxyType
from typing import Final

from nodeagent.ports.clients import GrantAsk, MemoryAsk
from nodeagent.ports.kubelet import ContainerLimits, PermanentError
from nodeagent.units import MIB, WHOLE_PPM, Bytes, Ppm, SharePolicy
from sluicecommon.hami.names import ResourceNames
from sluicecommon.kubernetes.quantity import QuantityError, exact_value, gpu_mib_problem
from sluicecommon.pod_annotations import share_policy

FIRST_PRIORITY: Final = 1
"""Priority of a grant whose pod requests HAMi's priority 0, if the node permits it; all others have
0."""
YIELDING_PPM: Final = Ppm(WHOLE_PPM // 100)
"""Weight of a share without requested cores. With a whole card's weight it would take most of the
time from neighbours that are limited to the cores that they requested."""
_MAX_QUANTITY: Final = 10**117
"""Larger numbers are refused before anything computes with them; all real ones are far smaller."""


@dataclass(frozen=True, slots=True)
class DefaultLimits:
    """Limits of a container without requests."""

    memory_mib: int = 0
    """0 means all of the GPU's memory."""
    cores_percent: int = 0
    """0 means no cap while alone, and beside others the weight of one core."""
    elastic: bool = False
    """True if a requested share is only a weight, not a cap."""
    max_priority: int = 0
    """Highest priority that a pod gets."""
    trusted_groups: bool = False
    """True if a pod may name a trusted group of its namespace."""
    alone: bool = False
    """True if each container gets whole GPUs exclusively, whatever it requests."""


def parse_quantity(text: str) -> Fraction:
    """Parse Kubernetes' notation for an amount that cannot be negative ("8k" is 8000).

    Raises ValueError for anything else, a sign included.
    """
    try:
        number = None if text.strip()[:1] in ("+", "-") else exact_value(text)
    except QuantityError:
        number = None
    if number is None or number > _MAX_QUANTITY:
        raise ValueError(f"expected a quantity such as 8000, 8k or 8Gi, got {text[:40]!r}")
    return number


def limits_from_requests(
    resources: Mapping[str, str],
    gpus: int,
    names: ResourceNames,
    defaults: DefaultLimits,
    annotations: Mapping[str, str] = MappingProxyType({}),
) -> ContainerLimits:
    """Limits of a container with `gpus` slots from the kubelet. Of the pod's annotations the policy
    of its share counts. Raises PermanentError for an invalid request."""
    if defaults.alone:
        return default_limits(gpus, defaults)
    memory = _whole(resources, names.memory)
    percent = _whole(resources, names.memory_percent)
    cores = _whole(resources, names.cores)
    if problem := gpu_mib_problem(memory, names.memory_factor):
        raise PermanentError(f"{names.memory}: {problem}")
    if memory:
        ask = MemoryAsk(amount_bytes=Bytes(memory * names.memory_factor * MIB))
    elif percent:
        if percent > 100:
            raise PermanentError(f"{names.memory_percent}: {percent} is more than 100 percent")
        ask = MemoryAsk(part_ppm=Ppm(percent * 10_000))
    else:
        ask = _default_memory(defaults)
    known = (*names.parts, names.priority)
    first = names.priority in resources and _whole(resources, names.priority) == 0
    grant = _ask(
        gpus,
        ask,
        cores if names.cores in resources else defaults.cores_percent,
        defaults.elastic,
        _policy(annotations),
    )
    return ContainerLimits(
        replace(grant, priority=min(FIRST_PRIORITY if first else 0, defaults.max_priority)),
        source="pod"
        if any(name in resources for name in known) or share_policy(annotations)
        else "defaults",
    )


def default_limits(gpus: int, defaults: DefaultLimits) -> ContainerLimits:
    if defaults.alone:
        whole = MemoryAsk(part_ppm=Ppm(WHOLE_PPM))
        return ContainerLimits(_ask(gpus, whole, 100, False), source="defaults")
    return ContainerLimits(
        _ask(gpus, _default_memory(defaults), defaults.cores_percent, defaults.elastic),
        source="defaults",
    )


def _default_memory(defaults: DefaultLimits) -> MemoryAsk:
    if defaults.memory_mib:
        return MemoryAsk(amount_bytes=Bytes(defaults.memory_mib * MIB))
    return MemoryAsk(part_ppm=Ppm(WHOLE_PPM))


def _policy(annotations: Mapping[str, str]) -> SharePolicy | None:
    """Raises PermanentError."""
    try:
        found = share_policy(annotations)
    except ValueError as error:
        raise PermanentError(str(error)) from None
    return SharePolicy(found) if found else None


def _ask(
    gpus: int,
    memory: MemoryAsk,
    cores: int,
    elastic: bool,
    policy: SharePolicy | None = None,
) -> GrantAsk:
    """`policy`: the one that the pod names; None if its cores decide it."""
    if policy is SharePolicy.EXCLUSIVE or (policy is SharePolicy.HARD and not cores):
        cores = 100
    if policy is not None:
        pass
    elif cores >= 100:
        policy = SharePolicy.EXCLUSIVE
    elif cores == 0 or elastic:
        policy = SharePolicy.ELASTIC
    else:
        policy = SharePolicy.HARD
    share = Ppm(cores * 10_000 if cores < 100 else WHOLE_PPM) if cores > 0 else YIELDING_PPM
    return GrantAsk(gpus=gpus, memory=memory, share_ppm=share, policy=policy)


def _whole(resources: Mapping[str, str], name: str) -> int:
    """The amount as a whole number; 0 if it is absent. Raises PermanentError."""
    text = resources.get(name)
    if text is None:
        return 0
    try:
        value = parse_quantity(text)
    except ValueError as error:
        raise PermanentError(f"{name}: {error}") from error
    if value.denominator != 1 or value < 0 or value > 1 << 40:
        raise PermanentError(f"{name}: expected a whole number of units, got {text[:40]!r}")
    return int(value)


def merge(parts: list[ContainerLimits]) -> ContainerLimits:
    """Combine the limits of an application container and of the init containers that had its
    devices before: the larger of everything. `parts` is not empty."""
    most = parts[0]
    for one in parts[1:]:
        most = replace(most, ask=_larger(most.ask, one.ask))
    return most


def _larger(a: GrantAsk, b: GrantAsk) -> GrantAsk:
    if a.gpu_uuids or b.gpu_uuids:  # The GPUs were decided elsewhere, for the pod as a whole.
        return a if a.gpu_uuids else b
    cores = max(a.share_ppm, b.share_ppm)
    policies = {a.policy, b.policy}
    for policy in (SharePolicy.EXCLUSIVE, SharePolicy.ELASTIC, SharePolicy.HARD):
        if policy in policies:
            break
    return GrantAsk(
        gpus=a.gpus,
        memory=_larger_memory(a.memory, b.memory),
        share_ppm=cores,
        policy=policy,
        priority=max(a.priority, b.priority),
        gang=a.gang or b.gang,
        trusted_group=a.trusted_group or b.trusted_group,
    )


def _larger_memory(a: MemoryAsk, b: MemoryAsk) -> MemoryAsk:
    """The larger memory. A part and an amount cannot be compared before the GPU is known; the part
    wins, because it is the whole GPU unless configured otherwise."""
    if a.amount_bytes is not None and b.amount_bytes is not None:
        return MemoryAsk(amount_bytes=max(a.amount_bytes, b.amount_bytes))
    parts = [one.part_ppm for one in (a, b) if one.part_ppm is not None]
    return MemoryAsk(part_ppm=max(parts))

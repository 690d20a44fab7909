"""GPU requests of a workload's pods: parsed from requests and annotations, described in words, and
converted for placement."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from queuecontroller.gpushares.admission.names import ADMITTED_AS
from queuecontroller.scheduler.model.objects import PodSet, ResourceFlavor
from queuecontroller.scheduler.placement.choose import PodToPlace, Topology
from queuecontroller.scheduler.placement.mig import profile_of, resource_of
from queuecontroller.scheduler.placement.request import (
    WHOLE_PPM,
    AnnotationError,
    AskError,
    GpuRequest,
    annotated,
)
from queuecontroller.state.records import GpuAsk, SharePolicy
from sluicecommon.hami.names import GPU, GPU_CORES, GPU_MEMORY, GPU_MEMORY_PERCENT
from sluicecommon.kai.unread import unread_fraction, unread_words
from sluicecommon.plain import read_plain, write_plain
from sluicecommon.pod_annotations import SHARE_POLICY, share_policy

MIB: Final = 1 << 20

ASKED: Final = "sluice.dev/asked"
"""Annotation of a simulated pod template: its GPU request as stored by the service. Only `simulate`
reads it, so it cannot bypass quota."""


def asked_of(ask: GpuAsk, node: str) -> str:
    """Value of ASKED. `node` is the only node where the pod may run, empty for any."""
    return json.dumps({"ask": write_plain(ask), "node": node}, separators=(",", ":"))


def read_asked(pod_set: PodSet) -> tuple[GpuAsk | None, str]:
    """GPU request and node of a simulated pod. Raises AskError."""
    text = pod_set.annotations.get(ASKED)
    if text is None:
        return ask_of(pod_set), ""
    try:
        given = json.loads(text)
        return read_plain(GpuAsk, given["ask"]), str(given["node"])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise AskError(f"{ASKED}: {str(error)[:200]}: remove it") from None


def ask_of(pod_set: PodSet) -> GpuAsk | None:
    """GPU request of a pod's containers, in HAMi's and NVIDIA's resource names; None without a GPU.
    Raises AskError."""
    annotated(pod_set.annotations)  # Errors are reported at submission.
    _refuse_unread(pod_set)
    policy = _policy(pod_set.annotations)
    gpus = sum(one.get(GPU, 0) for one in pod_set.containers)
    mig = _instances(pod_set)
    if mig and gpus:
        raise AskError(
            f"{GPU} and {resource_of(mig[0])}: a pod gets shares of GPUs or MIG instances"
        )
    if mig:
        if policy is SharePolicy.EXCLUSIVE:
            raise AskError(f"{SHARE_POLICY}: exclusive is for whole GPUs, not for MIG instances")
        return GpuAsk(gpus=len(mig), memory_ppm=WHOLE_PPM, mig=mig)
    if gpus < 1:
        return None

    def most(name: str) -> int | None:
        return max((one[name] for one in pod_set.containers if name in one), default=None)

    memory, percent, cores = most(GPU_MEMORY), most(GPU_MEMORY_PERCENT), most(GPU_CORES)
    if policy is None and cores is not None:
        # HAMi's meanings: 0 is no cap, 100 is the GPU exclusively.
        policy = SharePolicy.ELASTIC if cores == 0 else None
        policy = SharePolicy.EXCLUSIVE if cores >= 100 else policy
    if policy is SharePolicy.EXCLUSIVE:
        cores = 100
    return GpuAsk(
        gpus=gpus,
        memory_bytes=memory * MIB if memory else None,
        memory_ppm=None if memory else min(100, percent or 100) * 10_000,
        share_ppm=min(100, cores or 100) * 10_000,
        policy=policy or SharePolicy.HARD,
    )


def _refuse_unread(pod_set: PodSet) -> None:
    """Refuse KAI's words, which only the webhook of mode kubernetes honours. Raises AskError."""
    if ADMITTED_AS in pod_set.annotations:
        return
    if why := unread_fraction(pod_set.annotations):
        raise AskError(why)
    if any(GPU in one for one in pod_set.containers):
        for text in unread_words(pod_set.annotations, {}, delays=False):
            raise AskError(text)


def _instances(pod_set: PodSet) -> tuple[str, ...]:
    found: Counter[str] = Counter()
    for container in pod_set.containers:
        for resource, amount in container.items():
            profile = profile_of(resource)
            if profile is not None:
                found[profile] += amount
    return tuple(sorted(found.elements()))


def _policy(annotations: Mapping[str, str]) -> SharePolicy | None:
    try:
        found = share_policy(annotations)
    except ValueError as error:
        raise AnnotationError(str(error)) from None
    return SharePolicy(found) if found else None


def request_of(ask: GpuAsk, annotations: Mapping[str, str]) -> GpuRequest:
    """The request for placement. Raises AnnotationError."""
    request = GpuRequest(
        gpus=ask.gpus,
        memory_bytes=ask.memory_bytes,
        memory_ppm=ask.memory_ppm,
        share_ppm=ask.share_ppm,
        hard=ask.policy is not SharePolicy.ELASTIC,
        exclusive=ask.policy is SharePolicy.EXCLUSIVE,
        gpu_uuids=ask.gpu_uuids,
        mig=ask.mig,
    )
    if not annotations:
        return request
    return replace(request, **annotated(annotations))  # type: ignore[arg-type]


def pod_of(
    name: str,
    ask: GpuAsk,
    pod_set: PodSet,
    flavors: Iterable[ResourceFlavor],
    node: str = "",
    avoid: frozenset[str] = frozenset(),
) -> PodToPlace:
    """A pod of a pod set with these flavors; its node must have their labels. Raises
    AnnotationError."""
    given = list(flavors)
    labels = {k: v for flavor in given for k, v in flavor.node_labels.items()}
    return PodToPlace(
        name,
        request_of(ask, pod_set.annotations),
        node,
        tuple({**pod_set.node_selector, **labels}.items()),
        pod_set.affinity,
        (*pod_set.tolerations, *(one for flavor in given for one in flavor.tolerations)),
        avoid,
    )


def topology_of(pod_sets: Iterable[PodSet]) -> Topology:
    """The topology of a workload's pod sets."""
    preferred: dict[str, None] = {}
    for one in pod_sets:
        if one.required_topology:
            return Topology(required=one.required_topology)
        if one.preferred_topology:
            preferred[one.preferred_topology] = None
    return Topology(preferred=tuple(preferred))


def describe(ask: GpuAsk) -> str:
    return request_of(ask, {}).describe()


def requests_of(ask: GpuAsk) -> Mapping[str, int]:
    """The request in resource names for the quota; fractions are rounded up."""
    if ask.mig:
        return {resource_of(name): count for name, count in sorted(Counter(ask.mig).items())}
    requests = {GPU: len(ask.gpu_uuids) or ask.gpus, GPU_CORES: -(-ask.share_ppm // 10_000)}
    if ask.memory_bytes is not None:
        requests[GPU_MEMORY] = -(-ask.memory_bytes // MIB)
    else:
        requests[GPU_MEMORY_PERCENT] = -(-(ask.memory_ppm or WHOLE_PPM) // 10_000)
    return requests

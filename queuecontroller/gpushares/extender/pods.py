"""A pod's GPU request per container, in HAMi's resource names, and the placement in its annotation.

Amounts have the same meaning as for the node's agent: without memory the whole memory, without
cores (or with 0) no cap and an equal weight among sharers, with 100 cores the GPU exclusively; the
annotation `sluice.dev/share-policy` takes precedence.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from queuecontroller.scheduler.model.objects import Admission
from queuecontroller.scheduler.placement.request import WHOLE_PPM, AskError, GpuRequest, annotated
from queuecontroller.scheduler.placement.stock import Share
from sluicecommon.hami.names import NODE_POLICY, ResourceNames
from sluicecommon.kai.waiting import WaitingError, preemption_delay
from sluicecommon.kubernetes.quantity import QuantityError, parse_amount
from sluicecommon.pod_annotations import ELASTIC, EXCLUSIVE, PLACEMENT, share_policy

SCHEDULED: Final = "PodScheduled"
"""Condition of a pod whose reason is UNSCHEDULABLE while kube-scheduler finds no node."""
UNSCHEDULABLE: Final = "Unschedulable"
MIB: Final = 1 << 20
MAX_GPUS: Final = 64
"""GPUs per container."""
MAX_MIB: Final = 1 << 30
MAX_SHARES: Final = 1024
LONGEST_PLACEMENT: Final = 64 << 10
OVER: Final = frozenset({"Succeeded", "Failed"})


HAMI: Final = ResourceNames()
ANY_GPU: Final = GpuRequest()
_POLICY_FIELDS: Final = frozenset(("gpu_policy", "by_links", "idle_only", "by_numa"))


@dataclass(frozen=True, slots=True)
class ContainerAsk:
    name: str
    request: GpuRequest
    before: bool = False
    """True for an init container that ends before the others start."""


@dataclass(frozen=True, slots=True)
class PodAsk:
    namespace: str
    name: str
    uid: str
    priority: int
    containers: tuple[ContainerAsk, ...]
    """Containers that request GPUs."""
    node_policy: str = ""
    """Policy from the annotation; empty: the cluster's default."""
    may_displace: bool = True
    displaces_after_s: float = 0.0
    """Unix time before which no pod is preempted for it: KAI's preemption delay."""
    wrong: str = ""
    """Validation error; empty if valid."""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def shape(self) -> Hashable:
        """Key of the verdict cache: pods of equal shape fit the same nodes."""
        return self.containers

    def describe(self) -> str:
        parts = [one.request.describe() for one in self.containers]
        return " and ".join(parts) if len(parts) <= 3 else f"{parts[0]} and {len(parts) - 1} more"


@dataclass(frozen=True, slots=True)
class PodPlace:
    """Placement of a pod on the GPUs of one node."""

    node: str
    containers: Mapping[str, tuple[Share, ...]]
    before: tuple[str, ...] = ()
    """Names of the init containers that end before the others start."""
    beyond: tuple[Share, ...] = ()
    """Shares that these need in addition to those of the other containers."""
    workload: str = ""
    """Workload of the queue that holds the shares; empty: the pod holds them itself."""

    @property
    def held(self) -> tuple[Share, ...]:
        """All shares of the pod on the node."""
        together = (
            share
            for name, shares in self.containers.items()
            if name not in self.before
            for share in shares
        )
        return (*together, *self.beyond)

    def text(self) -> str:
        """JSON of the annotation."""
        containers = {
            name: [_plain(one) for one in shares] for name, shares in self.containers.items()
        }
        made: dict[str, Any] = {"node": self.node, "containers": containers}
        if self.before:
            made["before"] = self.before
        if self.beyond:
            made["beyond"] = [_plain(one) for one in self.beyond]
        if self.workload:
            made["workload"] = self.workload
        return json.dumps(made, separators=(",", ":"))


def _plain(share: Share) -> dict[str, Any]:
    made = {"uuid": share.uuid, "memory_bytes": share.memory_bytes, "share_ppm": share.share_ppm}
    return {**made, "alone": True} if share.alone else made


def read_place(text: str) -> PodPlace | None:
    """Parse the annotation; None if it is not one that we wrote."""
    if len(text) > LONGEST_PLACEMENT:
        return None
    try:
        found = json.loads(text)
        place = PodPlace(
            found["node"],
            {
                str(name): tuple(_read_share(one) for one in shares)
                for name, shares in found["containers"].items()
            },
            tuple(str(one) for one in found.get("before") or ()),
            tuple(_read_share(one) for one in found.get("beyond") or ()),
            str(found.get("workload") or ""),
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    if not isinstance(place.node, str) or not place.node or len(place.held) > MAX_SHARES:
        return None
    return place


def _read_share(one: Mapping[str, Any]) -> Share:
    uuid, memory, share = one["uuid"], one["memory_bytes"], one["share_ppm"]
    if not (isinstance(uuid, str) and type(memory) is int and type(share) is int):
        raise TypeError("a share of another form")
    if not (0 <= memory <= MAX_MIB * MIB and 0 <= share <= WHOLE_PPM):
        raise ValueError("a share out of bounds")
    return Share(uuid, memory, share, one.get("alone") is True)


def place_of(document: Mapping[str, Any]) -> PodPlace | None:
    """The place in the pod's annotation; None if there is none."""
    text = (document["metadata"].get("annotations") or {}).get(PLACEMENT)
    return read_place(text) if isinstance(text, str) else None


def nodes_of(admission: Admission) -> set[str]:
    """Nodes on which an admission reserved places for pods with GPU shares."""
    places = (read_place(one.place) for each in admission.pod_sets for one in each.places)
    return {place.node for place in places if place is not None}


def refusal_of(document: Mapping[str, Any]) -> str:
    """The reason why kube-scheduler found no node for a pod; empty if it has not tried, or has
    found one."""
    for one in (document.get("status") or {}).get("conditions") or ():
        if one.get("type") == SCHEDULED and one.get("reason") == UNSCHEDULABLE:
            return str(one.get("message") or UNSCHEDULABLE)
    return ""


def asks_for_part(document: Mapping[str, Any], names: ResourceNames) -> bool:
    """True if a container requests memory or time of GPUs."""
    parts = frozenset(names.parts)
    return any(
        not parts.isdisjoint(asked or {})
        for field in ("initContainers", "containers")
        for one in document["spec"].get(field) or ()
        for asked in (one.get("resources") or {}).values()
        if isinstance(asked, Mapping)
    )


def is_over(document: Mapping[str, Any]) -> bool:
    return (document.get("status") or {}).get("phase") in OVER


def read_pod(
    document: Mapping[str, Any],
    names: ResourceNames = HAMI,
    default: GpuRequest = ANY_GPU,
) -> PodAsk:
    """Parse a pod's request. The GPU policies of `default` apply if the pod's annotations have
    none. Raises KeyError, TypeError, AttributeError if the document is not a pod."""
    head, spec = document["metadata"], document["spec"]
    annotations = head.get("annotations") or {}
    made = PodAsk(
        str(head.get("namespace") or "default"),
        str(head.get("name") or ""),
        str(head.get("uid") or ""),
        int(spec.get("priority") or 0),
        (),
        may_displace=spec.get("preemptionPolicy") != "Never",
    )
    try:
        made = replace(made, displaces_after_s=_displaces_after_s(head))
        given = {str(key): str(value) for key, value in annotations.items()}
        chosen = annotated(given)
        chosen.pop("node_policy", None)
        policy = given.get(NODE_POLICY, "").strip()
        own = _POLICY_FIELDS & chosen.keys()
        base = replace(GpuRequest() if own else default, **chosen)  # type: ignore[arg-type]
        sharing = share_policy(given)
        asks = []
        for field, before in (("initContainers", True), ("containers", False)):
            for one in spec.get(field) or ():
                request = _request(one, names, base, sharing)
                if request is not None:
                    over_first = before and one.get("restartPolicy") != "Always"
                    asks.append(ContainerAsk(str(one.get("name") or ""), request, over_first))
        return replace(made, containers=tuple(asks), node_policy=policy)
    except AskError as error:
        return replace(made, wrong=str(error))


def _displaces_after_s(head: Mapping[str, Any]) -> float:
    """Raises AskError."""
    try:
        delay = preemption_delay(head.get("annotations") or {}, head.get("labels") or {})
    except WaitingError as error:
        raise AskError(str(error)) from None
    if delay is None:
        return 0.0
    try:
        created = datetime.fromisoformat(str(head.get("creationTimestamp") or ""))
    except ValueError:
        return 0.0  # The pod does not exist yet.
    return created.timestamp() + delay.seconds


def _request(
    container: Mapping[str, Any], names: ResourceNames, base: GpuRequest, sharing: str
) -> GpuRequest | None:
    """A container's request; None if it requests no GPU. `sharing`: the policy that the pod names.
    Raises AskError."""
    resources = container.get("resources") or {}
    asked = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}

    def amount(name: str, most: int) -> int:
        text = asked.get(name)
        if text is None:
            return 0
        try:
            found = parse_amount(name, text)
        except QuantityError as error:
            raise AskError(f"container {container.get('name')}: {name}: {error}") from None
        if not 0 <= found <= most:
            raise AskError(
                f"container {container.get('name')}: {name}: {found} is not between 0 and {most}"
            )
        return found

    count = amount(names.count, MAX_GPUS)
    if not count:
        return None
    memory = amount(names.memory, MAX_MIB // names.memory_factor) * names.memory_factor
    percent = amount(names.memory_percent, 100)
    cores = amount(names.cores, 100)
    exclusive = sharing == EXCLUSIVE if sharing else cores == 100
    return replace(
        base,
        gpus=count,
        memory_bytes=memory * MIB if memory else None,
        memory_ppm=None if memory else (percent or 100) * 10_000,
        share_ppm=(100 if exclusive else cores or 100) * 10_000,
        hard=sharing != ELASTIC if sharing else cores > 0,
        exclusive=exclusive,
    )

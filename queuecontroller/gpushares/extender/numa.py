"""Predicts the admission of pods by the kubelet's Topology Manager.

With the policies single-numa-node and restricted a kubelet rejects a pod for good
(TopologyAffinityError) if CPUs, memory and devices are not free on the same NUMA nodes. What is
free there is in the NodeResourceTopology of the node, which NFD's topology updater writes. As in
the kubelet, CPUs count for pods of the QoS class Guaranteed with whole CPUs, memory for Guaranteed
pods, and devices for all.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sluicecommon.kubernetes.quantity import CPU, QuantityError, format_amount, parse_amount
from sluicecommon.kubernetes.resources import Resource

TOPOLOGIES: Final = Resource(
    "topology.node.k8s.io",
    "v1alpha2",
    "noderesourcetopologies",
    "NodeResourceTopology",
    namespaced=False,
)
SINGLE: Final = "single-numa-node"
RESTRICTED: Final = "restricted"
POD: Final = "pod"
"""Scope in which all containers of a pod are on the same NUMA nodes; otherwise each by itself."""
_POLICY: Final = "topologyManagerPolicy"
_SCOPE: Final = "topologyManagerScope"
_OLD_POLICIES: Final = {
    "SingleNUMANodePodLevel": (SINGLE, POD),
    "SingleNUMANodeContainerLevel": (SINGLE, ""),
    "RestrictedPodLevel": (RESTRICTED, POD),
    "RestrictedContainerLevel": (RESTRICTED, ""),
}
"""The deprecated field topologyPolicies."""
MAX_ZONES: Final = 8
"""The kubelet's Topology Manager accepts no more NUMA nodes by default."""
MAX_RESOURCES: Final = 64
_NUMBER: Final = re.compile(r"[0-9]{1,4}\Z")
Amounts = Mapping[str, int]
Document = Mapping[str, Any]


class BadTopology(ValueError):
    """The object is not a NodeResourceTopology."""


@dataclass(frozen=True, slots=True)
class Zone:
    """One NUMA node. Amounts by resource: CPU in thousandths, all else in whole units."""

    number: int
    most: Amounts
    """All CPUs and devices, and the memory that pods may have: the kubelet compares requests with
    these to find how many NUMA nodes they need."""
    free: Amounts


@dataclass(frozen=True, slots=True)
class Topology:
    policy: str
    scope: str
    zones: tuple[Zone, ...]
    """NUMA nodes by number."""

    @property
    def is_strict(self) -> bool:
        """True if the kubelet rejects pods."""
        return self.policy in (SINGLE, RESTRICTED) and bool(self.zones)


def read_topology(document: Document) -> Topology:
    """Parse a NodeResourceTopology. Raises BadTopology."""
    try:
        policy, scope = _policy(document)
        zones = [_zone(one) for one in document.get("zones") or () if one.get("type") == "Node"]
    except (KeyError, TypeError, AttributeError, QuantityError) as error:
        raise BadTopology(f"{type(error).__name__}: {error}") from None
    if len(zones) > MAX_ZONES:
        raise BadTopology(f"{len(zones)} NUMA nodes: at most {MAX_ZONES} are read")
    if len({one.number for one in zones}) < len(zones):
        raise BadTopology("two zones have the same number")
    return Topology(policy, scope, tuple(sorted(zones, key=lambda one: one.number)))


def _policy(document: Document) -> tuple[str, str]:
    given = {str(one["name"]): str(one["value"]) for one in document.get("attributes") or ()}
    if _POLICY in given:
        return given[_POLICY], given.get(_SCOPE, "")
    for old in document.get("topologyPolicies") or ():
        return _OLD_POLICIES.get(str(old), ("", ""))
    return "", ""


def _zone(one: Document) -> Zone:
    number = _NUMBER.search(str(one["name"]))
    if number is None:
        raise BadTopology(f"zone {str(one['name'])[:80]} has no number")
    resources = list(one.get("resources") or ())
    if len(resources) > MAX_RESOURCES:
        raise BadTopology(f"{len(resources)} resources: at most {MAX_RESOURCES} are read")

    def amounts(field_name: str) -> Amounts:
        return {
            name: parse_amount(name, each[field_name])
            for each in resources
            if field_name in each
            for name in (str(each["name"]),)
        }

    whole, given = amounts("capacity"), amounts("allocatable")
    most = {**given, **whole, **{name: given[name] for name in given if _is_memory(name)}}
    return Zone(int(number[0]), most, amounts("available"))


# -- requests --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ContainerUse:
    """Resources of one container that the Topology Manager aligns."""

    name: str
    amounts: tuple[tuple[str, int], ...]
    """Amounts by resource, sorted."""
    before: bool = False
    """True for an init container that ends before the others start."""


def uses_of(pod: Document) -> tuple[ContainerUse, ...]:
    """Requests of a pod's containers, in the order in which the kubelet admits them. Raises
    KeyError, TypeError, AttributeError, QuantityError."""
    guaranteed = _is_guaranteed(pod)
    found = []
    for field_name, before in (("initContainers", True), ("containers", False)):
        for one in pod["spec"].get(field_name) or ():
            amounts = {
                name: amount
                for name, amount in _requests(one).items()
                if amount > 0 and _is_aligned(name, amount, guaranteed)
            }
            ends = before and one.get("restartPolicy") != "Always"
            found.append(ContainerUse(str(one["name"]), tuple(sorted(amounts.items())), ends))
    return tuple(found)


def _is_guaranteed(pod: Document) -> bool:
    """True if every container has limits of CPU and memory that equal its requests. The kubelet
    aligns no CPUs and memory of pods with requests for the pod as a whole."""
    spec = pod["spec"]
    if spec.get("resources"):
        return False
    for one in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        limits = (one.get("resources") or {}).get("limits") or {}
        requests = _requests(one)
        for name in (CPU, "memory"):
            if name not in limits or parse_amount(name, limits[name]) != requests[name]:
                return False
    return True


def _requests(container: Document) -> dict[str, int]:
    resources = container.get("resources") or {}
    asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {str(name): parse_amount(str(name), amount) for name, amount in asked.items()}


def _is_aligned(name: str, amount: int, guaranteed: bool) -> bool:
    if name == CPU:
        return guaranteed and amount % 1000 == 0
    return guaranteed if _is_memory(name) else "/" in name


def _is_memory(name: str) -> bool:
    return name == "memory" or name.startswith("hugepages-")


# -- the prediction --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Prediction:
    numa_nodes: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """NUMA nodes that the kubelet will choose, by container; none for what it does not align."""
    taken: tuple[tuple[frozenset[int], Amounts], ...] = ()
    """Amounts that the pod keeps, each with its NUMA nodes."""
    reason: str = ""
    """Why the kubelet would reject the pod; empty if it would not."""


ADMITTED: Final = Prediction()


def predict(topology: Topology, uses: tuple[ContainerUse, ...]) -> Prediction:
    """The Topology Manager's decision about a pod."""
    if not topology.is_strict:
        return ADMITTED
    free = {zone.number: dict(zone.free) for zone in topology.zones}
    chosen: dict[str, frozenset[int]] = {}
    taken: list[tuple[frozenset[int], Amounts]] = []
    for use in _as_one(uses) if topology.scope == POD else uses:
        amounts = {
            name: amount
            for name, amount in use.amounts
            if any(name in zone.most or name in zone.free for zone in topology.zones)
        }
        if not amounts:
            continue
        width = _width(topology, amounts)
        fitting = None
        if width is not None:
            fitting = next(_fitting(free, amounts, width), None)
        if fitting is None:
            return Prediction(reason=_why(topology, use, amounts, width, free))
        names = [one.name for one in uses] if topology.scope == POD else [use.name]
        chosen |= dict.fromkeys(names, fitting)
        if not use.before:
            take(free, fitting, amounts)
            taken.append((fitting, amounts))
    return Prediction(chosen, tuple(taken))


def _as_one(uses: Iterable[ContainerUse]) -> tuple[ContainerUse]:
    """The pod as one container: the most that it has at a time."""
    together: dict[str, int] = {}
    most: dict[str, int] = {}
    for use in uses:
        for name, amount in use.amounts:
            if use.before:  # Beside the sidecars that were started earlier.
                most[name] = max(most.get(name, 0), together.get(name, 0) + amount)
            else:
                together[name] = together.get(name, 0) + amount
    for name, amount in together.items():
        most[name] = max(most.get(name, 0), amount)
    return (ContainerUse("", tuple(sorted(most.items()))),)


def _width(topology: Topology, amounts: Amounts) -> int | None:
    """How many NUMA nodes the container is on; None if the kubelet never agrees on a number: each
    resource must need the same one."""
    if topology.policy == SINGLE:
        return 1
    widths = set()
    for name, amount in amounts.items():
        most = sorted((zone.most.get(name, 0) for zone in topology.zones), reverse=True)
        sums = itertools.accumulate(most)
        widths.add(next((at for at, got in enumerate(sums, 1) if got >= amount), None))
    return widths.pop() if len(widths) == 1 else None


def _fitting(free: Mapping[int, Amounts], amounts: Amounts, width: int) -> Iterator[frozenset[int]]:
    """Sets of so many NUMA nodes with enough of everything, in the kubelet's order: as numbers with
    a bit for each node, the smallest first."""
    sets = itertools.combinations(sorted(free), width)
    for numbers in sorted(sets, key=lambda one: sum(1 << number for number in one)):
        if all(
            sum(max(0, free[number].get(name, 0)) for number in numbers) >= amount
            for name, amount in amounts.items()
        ):
            yield frozenset(numbers)


def take(free: Mapping[int, dict[str, int]], numbers: frozenset[int], amounts: Amounts) -> None:
    """Subtract amounts from NUMA nodes, from the lowest number first."""
    for name, amount in amounts.items():
        for number in sorted(numbers):
            there = free[number]
            if name in there:
                part = min(amount, max(0, there[name]))
                there[name] -= part
                amount -= part


def _why(
    topology: Topology,
    use: ContainerUse,
    amounts: Amounts,
    width: int | None,
    free: Mapping[int, Amounts],
) -> str:
    who = f"container {use.name}" if use.name else "the pod"
    begins = f"its kubelet would reject the pod ({_POLICY} {topology.policy})"
    if width is None:
        several = ", ".join(amounts)
        return f"{begins}: {who} needs {several} on different numbers of NUMA nodes"
    need = _words(amounts)
    have = "; ".join(
        f"node {number} has {_words({name: free[number].get(name, 0) for name in amounts})}"
        for number in sorted(free)
    )
    on = "one NUMA node" if width == 1 else f"{width} NUMA nodes"
    return f"{begins}: {who} needs {need} free on {on}; {have}"


def _words(amounts: Amounts) -> str:
    return ", ".join(f"{name} {format_amount(name, max(0, n))}" for name, n in amounts.items())

"""Remedies: the amounts that are missing, by flavor and resource, and whatever else stands in the
way, each as a sentence that completes "it would start if …"."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from queuecontroller.engine.cluster_queue import ClusterQueueState
from queuecontroller.engine.model import Workload
from queuecontroller.engine.quantities import format_amount
from queuecontroller.engine.scheduler import Scheduler
from queuecontroller.engine.workload_info import WorkloadInfo

HOLDERS_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class Shortage:
    """One resource of one flavor that is not there. Amounts in the engine's integers."""

    flavor: str
    resource: str
    asked: int
    available: int
    """Now, with what may be borrowed."""
    potential: int
    """If nobody else used anything."""

    @property
    def missing(self) -> int:
        return self.asked - self.available

    @property
    def hopeless(self) -> bool:
        return self.asked > self.potential


UNWELCOME: Final = "namespace doesn't match"
"""Part of the engine's message to those their ClusterQueue's selector keeps out."""


def remedies(
    scheduler: Scheduler, workload: Workload, cluster_queue: str, message: str
) -> list[str]:
    """`cluster_queue` is where it stands, empty for nowhere; `message` what the engine last said.
    Empty when nothing but its turn is in the way."""
    homeless = scheduler.homeless(workload.key)
    if homeless is not None:
        return [f"this is mended: {homeless}"]
    state = scheduler.cache.queues.get(cluster_queue)
    if state is None:
        return []
    inactive = scheduler.cache.why_inactive(state.name)
    if inactive is not None:
        return [f"this is mended: {inactive}"]
    if UNWELCOME in message:
        return [
            f"namespace {workload.namespace} had the labels that the namespaceSelector of"
            f" ClusterQueue {state.name} asks for"
        ]
    uncovered = _uncovered(workload, state)
    if uncovered:
        return [f"ClusterQueue {state.name} covered {name}" for name in uncovered]
    found = shortages(scheduler, workload, state.name)
    return [_sentence(scheduler, state, one) for one in found]


def shortages(scheduler: Scheduler, workload: Workload, cluster_queue: str) -> list[Shortage]:
    """Per resource group the shortages of the flavor that is nearest; none if one fits."""
    state = scheduler.cache.queues[cluster_queue]
    asked = _asked(workload)
    out: list[Shortage] = []
    for group in state.spec.resource_groups:
        wanted = {name: asked[name] for name in group.covered_resources if asked.get(name)}
        if not wanted:
            continue
        by_flavor = [
            _of_flavor(
                scheduler, state, flavor.flavor, {q.resource for q in flavor.resources}, wanted
            )
            for flavor in group.flavors
        ]
        if by_flavor and all(by_flavor):
            out += min(by_flavor, key=_distance)
    return out


def _of_flavor(
    scheduler: Scheduler,
    state: ClusterQueueState,
    flavor: str,
    given: set[str],
    wanted: dict[str, int],
) -> list[Shortage]:
    found = []
    for resource, amount in sorted(wanted.items()):
        if resource not in given:
            continue  # left out: unlimited
        fr = scheduler.cache.numbers.number(flavor, resource)
        available = max(0, state.node.available(fr))
        if amount > available:
            potential = max(0, state.node.potential_available(fr))
            found.append(Shortage(flavor, resource, amount, available, potential))
    return found


def _distance(found: Iterable[Shortage]) -> tuple[bool, int]:
    """Never before later, then by how much of what is asked is missing."""
    found = list(found)
    worst = max(one.missing * 1_000_000 // max(1, one.asked) for one in found)
    return any(one.hopeless for one in found), worst


def _asked(workload: Workload) -> dict[str, int]:
    total: dict[str, int] = {}
    for pod_set in workload.pod_sets:
        for name, amount in pod_set.requests.items():
            total[name] = total.get(name, 0) + amount * pod_set.count
    return total


def _uncovered(workload: Workload, state: ClusterQueueState) -> list[str]:
    covered = {name for group in state.spec.resource_groups for name in group.covered_resources}
    return sorted(
        name for name, amount in _asked(workload).items() if amount and name not in covered
    )


def _sentence(scheduler: Scheduler, state: ClusterQueueState, one: Shortage) -> str:
    def shown(amount: int) -> str:
        return format_amount(one.resource, amount)

    asks = f"it asks for {shown(one.asked)}, {shown(one.available)} can be had now"
    if one.hopeless:
        return (
            f"ClusterQueue {state.name} might use {shown(one.asked - one.potential)} more"
            f" {one.resource} of flavor {one.flavor} ({asks}, {shown(one.potential)} at the very"
            " most: raise nominalQuota or the borrowing limit, or ask for less)"
        )
    holders = _holders(scheduler, state, one)
    who = f"; {holders}" if holders else ""
    return (
        f"{shown(one.missing)} more {one.resource} of flavor {one.flavor} became free ({asks}{who})"
    )


def _holders(scheduler: Scheduler, state: ClusterQueueState, one: Shortage) -> str:
    """Who in the same queue holds most of it."""
    fr = scheduler.cache.numbers.number(one.flavor, one.resource)

    def amount(info: WorkloadInfo) -> int:
        return info.usage.get(fr, 0)

    holding = [info for info in state.workloads.values() if amount(info)]
    most = sorted(holding, key=lambda info: (-amount(info), info.key))[:HOLDERS_SHOWN]
    if not most:
        return "other queues of its cohort hold it"
    names = ", ".join(f"{info.key} {format_amount(one.resource, amount(info))}" for info in most)
    more = len(holding) - len(most)
    return f"held by {names}{f' and {more} more' if more else ''}"

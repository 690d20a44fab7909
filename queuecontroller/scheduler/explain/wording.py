"""Amounts, queues and required changes as text. Every change completes "it would start if …"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from queuecontroller.scheduler.explain.fair_sharing import Turn
from queuecontroller.scheduler.explain.limits import Limit, LimitKind
from queuecontroller.scheduler.explain.shortages import Candidate, Needs, Shortage
from queuecontroller.scheduler.model.flavor_resources import Fr
from queuecontroller.scheduler.model.objects import ClusterQueue, LocalQueue, StopPolicy, Workload
from queuecontroller.scheduler.model.reasons import QUOTA_RESERVED, TO_BE_REPLACED
from queuecontroller.scheduler.model.selectors import Requirement, holds
from queuecontroller.scheduler.model.workload_info import WorkloadInfo
from queuecontroller.scheduler.preemption.room import RoomMove
from queuecontroller.scheduler.quota.cluster_queue import ClusterQueueState
from sluicecommon.kubernetes.quantity import format_amount

SHOWN: Final = 3
"""Names in a list before the rest is only counted."""
COULD_NOT_PLACE: Final = "couldn't place: "


def listed(names: Sequence[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def shortage_as_dict(one: Shortage) -> dict[str, Any]:
    def shown(amount: int) -> str:
        return format_amount(one.resource, amount)

    return {
        "flavor": one.flavor,
        "resource": one.resource,
        "asked": shown(one.asked),
        "available": shown(max(0, one.available)),
        "potential": shown(one.potential),
        "missing": shown(one.missing),
        "limits": [
            {
                "object": limit.label,
                "kind": str(limit.kind),
                "allowed": shown(limit.allowed),
                "used": shown(limit.used),
                "missing": shown(limit.missing),
            }
            for limit in one.limits
        ],
    }


def candidate(one: Candidate) -> str:
    if one.refusal is not None:
        return one.refusal
    if not one.shortages:
        return f"flavor {one.flavor} has room"
    lacks = [
        f"{format_amount(s.resource, s.missing)} {s.resource}"
        f" ({'; '.join(_said(s, limit) for limit in s.limits)})"
        for s in one.shortages
    ]
    return f"flavor {one.flavor} lacks {' and '.join(lacks)}"


def _said(one: Shortage, limit: Limit) -> str:
    def shown(amount: int) -> str:
        return format_amount(one.resource, amount)

    lent = " with its borrowingLimit" if limit.kind is LimitKind.BORROWING else ""
    return (
        f"{limit.label}{lent}: {shown(limit.used)} of {shown(limit.allowed)} in use,"
        f" {shown(limit.missing)} too few"
    )


# -- quota ----------------------------------------------------------------------------------------


def free(needs: Needs, holders: Mapping[Fr, Sequence[tuple[str, int]]]) -> str:
    """Text for quota to be released; `holders` lists the largest users."""
    parts = []
    for one in needs.shortages:
        where = " and ".join(_freed(one, limit) for limit in one.limits)
        asks = (
            f"it requests {format_amount(one.resource, one.asked)},"
            f" {format_amount(one.resource, max(0, one.available))} available now"
        )
        who = [f"{key} {format_amount(one.resource, n)}" for key, n in holders.get(one.fr, ())]
        parts.append(f"{where} ({asks}{f'; held by {listed(who)}' if who else ''})")
    return _with_counts(", and ".join(parts), needs)


def _freed(one: Shortage, limit: Limit) -> str:
    amount = format_amount(one.resource, limit.missing)
    end = ", which is at its borrowingLimit" if limit.kind is LimitKind.BORROWING else ""
    return f"{amount} more {one.resource} of flavor {one.flavor} became free in {limit.label}{end}"


def _with_counts(text: str, needs: Needs) -> str:
    if needs.counts is None:
        return text
    return f"{text}; that is for the {sum(needs.counts)} pods it can start with at least"


def raise_nominal(cluster_queue: str, needs: Needs, nominal: Mapping[Fr, int]) -> str:
    parts = []
    for one in needs.shortages:
        was = nominal.get(one.fr, 0)
        parts.append(
            f"nominalQuota of {one.resource} of flavor {one.flavor} were"
            f" {format_amount(one.resource, was + one.missing)} instead of"
            f" {format_amount(one.resource, was)}"
        )
    return f"in ClusterQueue {cluster_queue} {' and '.join(parts)}"


def borrow_more(needs: Needs) -> str:
    """Text where only borrowing limits refuse the request."""
    return " and ".join(
        f"{limit.label} might borrow {format_amount(one.resource, limit.missing)} more"
        f" {one.resource} of flavor {one.flavor} (its borrowingLimit prevents it)"
        for one in needs.shortages
        for limit in one.limits
    )


def ask_less(info: WorkloadInfo, needs: Needs) -> str | None:
    """Text for a smaller request; None unless it concerns a single pod set and flavor."""
    if len(info.pod_sets) != 1 or any(one.available <= 0 for one in needs.shortages):
        return None
    if len({one.flavor for one in needs.shortages}) != 1:
        return None
    parts = [
        f"no more than {format_amount(one.resource, one.available)} {one.resource}"
        for one in needs.shortages
    ]
    return f"it requested {' and '.join(parts)} in all"


def maximum_time(seconds: float, names: Sequence[str]) -> str:
    """Text for workloads, `names`, that will all have reached their maximum execution time."""
    return (
        f"{seconds:.0f} s went by: then {listed(names)} reached"
        f" {'its' if len(names) == 1 else 'their'} maximumExecutionTimeSeconds, if not before"
    )


# -- everything else ------------------------------------------------------------------------------


def uncovered(cluster_queue: str, names: Sequence[str]) -> str:
    return (
        f"ClusterQueue {cluster_queue} covered {' and '.join(names)} (or the workload did not"
        " request it, or resources.excludeResourcePrefixes left it out)"
    )


def refused(cluster_queue: str, pod_set: str, candidates: Sequence[Candidate]) -> str:
    whys = "; ".join(one.refusal for one in candidates if one.refusal is not None)
    why = whys or "its resource group names none"
    return f"a flavor of ClusterQueue {cluster_queue} took pod set {pod_set} ({why})"


def no_room(message: str) -> str:
    why = message.rpartition(COULD_NOT_PLACE)[2]
    return f"a node had room for it ({why}); there is quota for it"


def moved(moves: Sequence[RoomMove]) -> str:
    texts = [f"{one.workload} moved from {one.source} to {one.target}" for one in moves]
    return " and ".join(texts)


def requested(new_nodes: str) -> str:
    return f"it had {new_nodes}, requested from the autoscaler"


def backing_off(seconds: float, count: int) -> str:
    return f"{seconds:.0f} s went by: it backs off after {count} attempts"


def its_turn(ahead: int, cluster_queue: str, turn: Turn | None = None) -> str:
    who = "1 workload is" if ahead == 1 else f"{ahead} workloads are"
    way = f"it became the head: there is quota for it, and {who} before it in {cluster_queue}"
    if turn is None or not turn.before:
        return way
    before = listed([f"{name} {used:.4g}" for name, used in turn.before])
    return (
        f"{way} (its LocalQueue {turn.local_queue} has a recorded usage of {turn.usage:.4g}, those"
        f" served before it less: {before})"
    )


def kept(cohort: str) -> str:
    return (
        f"the workloads of cohort {cohort} before it had started: there is quota for it, and it is"
        " reserved for them"
    )


def unqueued(workload: Workload, local: LocalQueue | None) -> str:
    """Change needed by a workload that is in no queue."""
    if workload.admission is not None:
        return f"there were a ClusterQueue {workload.admission.cluster_queue}"
    if not workload.active:
        return f"it were active again (sluice-queue resume workload {workload.key})"
    if workload.is_on_hold:
        reserved = workload.condition(QUOTA_RESERVED)
        if reserved is not None and reserved.message == TO_BE_REPLACED:
            return "its evicted pods were replaced"
        return "its StatefulSet were scaled up again"
    if workload.is_gated:
        gates = "kueue.x-k8s.io/admission-gated-by"
        return f"{workload.gated_by} were removed from its annotation {gates}"
    if local is None:
        name = f"{workload.namespace}/{workload.queue_name}"
        return f"there were a LocalQueue {name}, or it named an existing one"
    if local.stop_policy is not StopPolicy.NONE:
        return (
            f"LocalQueue {local.key} were resumed: it is stopped, {local.stop_policy}"
            f" (sluice-queue resume lq {local.key})"
        )
    return f"there were a ClusterQueue {local.cluster_queue}"


def inactive(state: ClusterQueueState, why: str) -> str:
    missing = state.missing_flavors()
    if missing:
        names = " and ".join(missing)
        return f"there were a ResourceFlavor {names}, which ClusterQueue {state.name} names"
    policy = state.spec.stop_policy
    if policy is not StopPolicy.NONE:
        return (
            f"ClusterQueue {state.name} were resumed: it is stopped, {policy}"
            f" (sluice-queue resume cq {state.name})"
        )
    return f"this were corrected: {why}"


def namespace_mismatch(namespace: str, queue: ClusterQueue, labels: Mapping[str, str]) -> str:
    selector = queue.namespace_selector
    if selector is None:
        return (
            f"ClusterQueue {queue.name} had a namespaceSelector: without one it serves no namespace"
        )
    wanted = [_wanted(one) for one in selector.requirements if not holds(one, labels)]
    return (
        f"namespace {namespace} had {' and '.join(wanted)} among its labels, as the"
        f" namespaceSelector of ClusterQueue {queue.name} requires"
    )


def _wanted(one: Requirement) -> str:
    values = ", ".join(one.values)
    words = {
        "In": f"{one.key}={values}" if len(one.values) == 1 else f"{one.key} in ({values})",
        "NotIn": f"{one.key} not in ({values})",
        "Exists": one.key,
        "DoesNotExist": f"no {one.key}",
    }
    return words.get(one.operator, f"{one.key} {one.operator} {values}")

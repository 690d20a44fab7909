"""The flavor search: which flavor of each resource group a workload's pod sets would run on.

Flavors are tried in the queue's order. Each is judged by its worst resource: fits, fits by
preempting, does not fit; and by how high in the cohort tree it must borrow. FlavorFungibility
decides when a second-best flavor ends the search and which of two second-best ones is preferred.
The search remembers where it ended, so that a requeued workload continues with the next flavor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

from queuecontroller.scheduler.model.assignment import (
    NEARNESS,
    Assignment,
    Attempt,
    FlavorAssignment,
    Mode,
    PodSetResult,
    PreemptionMode,
)
from queuecontroller.scheduler.model.flavor_resources import Fr
from queuecontroller.scheduler.model.objects import (
    FlavorFungibility,
    FungibilityPolicy,
    FungibilityPreference,
    PreemptionPolicy,
)
from queuecontroller.scheduler.model.reasons import PendingReason
from queuecontroller.scheduler.model.selectors import node_affinity_matches, untolerated
from queuecontroller.scheduler.model.settings import EngineSettings
from queuecontroller.scheduler.model.workload_info import PodSetRequests, WorkloadInfo
from queuecontroller.scheduler.quota.cluster_queue import (
    ClusterQueueState,
    FlavorChoice,
    GroupChoices,
)
from sluicecommon.kubernetes.quantity import PODS, format_amount

# The mode in which a flavor is available, and the borrowing height, where lower is better.
Price = tuple[PreemptionMode, int]

Pins = Mapping[str, Mapping[str, str]]
"""The only flavor allowed, by pod set and resource. Empty: any flavor."""

_WORST_BORROW: Final = 1 << 30
_REFUSED: Final[Price] = (PreemptionMode.NO_FIT, 0)
_WORST: Final[Price] = (PreemptionMode.NO_FIT, _WORST_BORROW)


class PreemptionOracle(Protocol):
    """Estimates what preemption could achieve for one resource alone."""

    def simulate(
        self, queue: ClusterQueueState, info: WorkloadInfo, fr: Fr, amount: int
    ) -> Price: ...


def is_preferred(one: Price, other: Price, fungibility: FlavorFungibility) -> bool:
    """True if `one` is strictly better than `other`."""
    if one[0] is PreemptionMode.NO_FIT:
        return False
    if other[0] is PreemptionMode.NO_FIT:
        return True
    hopeless = PreemptionMode.NO_CANDIDATES
    if fungibility.preference is FungibilityPreference.PREEMPTION_OVER_BORROWING:
        if (one[0] is hopeless) != (other[0] is hopeless):
            return other[0] is hopeless  # no candidates there: no better than borrowing
        return (-one[1], one[0]) > (-other[1], other[0])
    return (one[0], -one[1]) > (other[0], -other[1])


def should_try_next(price: Price, fungibility: FlavorFungibility) -> bool:
    mode, borrow = price
    stop = FungibilityPolicy.MAY_STOP_SEARCH
    if mode in (PreemptionMode.NO_FIT, PreemptionMode.NO_CANDIDATES):
        return True
    if mode is not PreemptionMode.FIT and fungibility.when_can_preempt is not stop:
        return True
    return borrow > 0 and fungibility.when_can_borrow is not stop


class FlavorAssigner:
    """Assigns flavors for workloads of one ClusterQueue."""

    __slots__ = ("_may_preempt_while_borrowing", "_oracle", "_queue", "_settings", "pinned")

    def __init__(
        self,
        queue: ClusterQueueState,
        oracle: PreemptionOracle,
        settings: EngineSettings,
        pinned: Pins | None = None,
    ) -> None:
        self._queue = queue
        self._oracle = oracle
        self._settings = settings
        self.pinned: Pins = pinned or {}
        preemption = queue.spec.preemption
        self._may_preempt_while_borrowing = preemption.may_borrow_while_preempting or (
            settings.fair_sharing and preemption.reclaim_within_cohort is not PreemptionPolicy.NEVER
        )

    def assign(self, info: WorkloadInfo, counts: Sequence[int] | None = None) -> Assignment:
        """Assign flavors for the whole workload, or for these counts of its pod sets."""
        pod_sets: Sequence[PodSetRequests] = info.pod_sets
        if counts is not None:
            pod_sets = [one.scaled_to(n) for one, n in zip(pod_sets, counts, strict=True)]
        result = Assignment()
        for group in grouped(pod_sets):
            if not self._assign_group(info, pod_sets, group, result):
                return result
        result.mode = min((one.mode for one in result.pod_sets), default=Mode.NO_FIT)
        return result

    def _requests(self, pod_set: PodSetRequests) -> Mapping[str, int]:
        requests = pod_set.requests
        if PODS in self._queue.group_of:
            requests = pod_set.requests_with_pods()
        return requests

    def refusal(
        self, info: WorkloadInfo, group: Sequence[int], choices: GroupChoices, choice: FlavorChoice
    ) -> str | None:
        """Reason why the pod sets of a group cannot run on a flavor with any amount of quota."""
        requests = _sum([self._requests(info.pod_sets[i]) for i in group])
        search = _Search(self, info, info.pod_sets, group, choices, requests, {})
        return search.refusal(choice)

    def _assign_group(
        self,
        info: WorkloadInfo,
        pod_sets: Sequence[PodSetRequests],
        group: Sequence[int],
        result: Assignment,
    ) -> bool:
        """Assign flavors to the pod sets of one group; False if none fits."""
        wanted = [self._requests(pod_sets[i]) for i in group]
        requests = wanted[0] if len(group) == 1 else _sum(wanted)
        found: dict[str, FlavorAssignment] = {}
        reasons: list[str] = []
        attempts: list[Attempt] = []
        failure: PendingReason | None = None
        for resource, amount in requests.items():
            if resource in found:
                continue
            choices = self._queue.group_of.get(resource)
            if choices is None:
                if amount == 0:
                    continue
                reasons.append(f"resource {resource} unavailable in ClusterQueue")
                failure = PendingReason.NO_MATCHING_FLAVOR
                break
            search = _Search(self, info, pod_sets, group, choices, requests, result.usage)
            assigned = search.run(resource)
            attempts += search.attempts
            reasons += search.reasons
            if not assigned:
                failure = search.pending_reason
                break
            found.update(assigned)
        if failure is None and (
            message := self._conflicting_topologies(pod_sets, group, wanted, found)
        ):
            reasons.append(message)
            failure = PendingReason.NO_MATCHING_FLAVOR
        for i, mine in zip(group, wanted, strict=True):
            one = PodSetResult(pod_sets[i].name, pod_sets[i].count, mine)
            one.attempts, one.reasons = attempts, reasons
            one.failed, one.pending_reason = failure is not None, failure
            if failure is None:
                one.flavors = {name: found[name] for name in mine if name in found}
            self._append(result, one, i, info)
        return failure is None

    def _conflicting_topologies(
        self,
        pod_sets: Sequence[PodSetRequests],
        group: Sequence[int],
        wanted: Sequence[Mapping[str, int]],
        found: Mapping[str, FlavorAssignment],
    ) -> str | None:
        """Reason why one pod set cannot have these flavors: its pods are placed by one topology,
        and the flavors of its resources have two; None if they can be combined."""
        for i, mine in zip(group, wanted, strict=True):
            pod_set = pod_sets[i].pod_set
            if pod_set is None or not (pod_set.wants_topology or self._queue.only_topology):
                continue
            topologies: dict[str, str] = {}
            for resource in mine:
                got = found.get(resource)
                choices = self._queue.group_of.get(resource)
                if got is None or choices is None:
                    continue
                for choice in choices.flavors:
                    flavor = choice.flavor if choice.name == got.flavor else None
                    if flavor is not None and flavor.topology_name:
                        topologies.setdefault(flavor.topology_name, choice.name)
            if len(topologies) > 1:
                given = ", ".join(f"{flavor} of {name}" for name, flavor in topologies.items())
                return f"pod set {pod_sets[i].name} needs one topology, its flavors have {given}"
        return None

    def _append(
        self, result: Assignment, one: PodSetResult, index: int, info: WorkloadInfo
    ) -> None:
        result.pod_sets.append(one)
        result.tried.append({name: got.tried_index for name, got in one.flavors.items()})
        before = info.replaces[index].requests if info.replaces else {}
        for name, got in one.flavors.items():
            result.borrowing = max(result.borrowing, got.borrow)
            if got.fr is not None:
                more = one.requests[name] - before.get(name, 0)
                result.usage[got.fr] = result.usage.get(got.fr, 0) + more

    def price(
        self, info: WorkloadInfo, fr: Fr, resource: str, assumed: int, amount: int
    ) -> tuple[Price, str | None, PendingReason | None]:
        """Price of `amount` more of one resource on top of `assumed`, and the reason it is not
        lower."""
        node = self._queue.node
        needed = assumed + amount
        most = node.potential_available(fr)
        if needed > most:
            flavor = self._flavor_of(fr, resource)
            message = (
                f"insufficient quota for {resource} in flavor {flavor}, previously considered "
                f"podsets requests ({format_amount(resource, assumed)}) + current podset request "
                f"({format_amount(resource, amount)}) > maximum capacity "
                f"({format_amount(resource, most)})"
            )
            return (PreemptionMode.NO_FIT, 0), message, PendingReason.EXCEEDS_MAX_QUOTA
        borrow, may_reclaim = node.borrow_height(fr, needed)
        left = max(0, node.available(fr))
        if needed <= left:
            return (PreemptionMode.FIT, borrow), None, None
        flavor = self._flavor_of(fr, resource)
        message = (
            f"insufficient unused quota for {resource} in flavor {flavor}, "
            f"{format_amount(resource, needed - left)} more needed"
        )
        may_preempt = (
            needed <= node.nominal.get(fr, 0) or may_reclaim or self._may_preempt_while_borrowing
        )
        if may_preempt:
            price = self._oracle.simulate(self._queue, info, fr, needed)
            return price, message, PendingReason.WAITING_FOR_QUOTA
        return (PreemptionMode.NO_FIT, borrow), message, PendingReason.WAITING_FOR_QUOTA

    def _flavor_of(self, fr: Fr, resource: str) -> str:
        for choice in self._queue.group_of[resource].flavors:
            if choice.frs.get(resource) == fr:
                return choice.name
        return "?"

    @property
    def fungibility(self) -> FlavorFungibility:
        return self._queue.spec.flavor_fungibility

    @property
    def omitted_is_unlimited(self) -> bool:
        return self._settings.omitted_resource_is_unlimited

    @property
    def queue(self) -> ClusterQueueState:
        return self._queue


class _Search:
    """One walk through the flavors of one resource group."""

    __slots__ = (
        "_assigner",
        "_choices",
        "_group",
        "_info",
        "_pod_sets",
        "_requests",
        "_usage",
        "attempts",
        "pending_reason",
        "reasons",
    )

    def __init__(
        self,
        assigner: FlavorAssigner,
        info: WorkloadInfo,
        pod_sets: Sequence[PodSetRequests],
        group: Sequence[int],
        choices: GroupChoices,
        requests: Mapping[str, int],
        usage: Mapping[Fr, int],
    ) -> None:
        self._assigner = assigner
        self._info = info
        self._pod_sets = pod_sets
        self._group = group
        self._choices = choices
        self._requests = {r: n for r, n in requests.items() if r in choices.covered}
        self._usage = usage
        self.attempts: list[Attempt] = []
        self.reasons: list[str] = []
        self.pending_reason = PendingReason.NO_MATCHING_FLAVOR

    def run(self, resource: str) -> dict[str, FlavorAssignment]:
        """The best flavor for every resource of the group; nothing when none will do."""
        fungibility = self._assigner.fungibility
        flavors = self._choices.flavors
        last = self._info.last_assignment
        start = last.next_flavor(self._group[0], resource)
        best: dict[str, FlavorAssignment] = {}
        best_price = _WORST
        index = start - 1
        for index in range(start, len(flavors)):
            choice = flavors[index]
            if not self._is_open(choice.name, resource):
                continue
            refusal = self.refusal(choice)
            if refusal is not None:
                self._note(choice.name, _REFUSED, [refusal], PendingReason.NO_MATCHING_FLAVOR)
                continue
            price, assigned = self._judge(choice)
            if not should_try_next(price, fungibility):
                best, best_price = assigned, price
                break
            if is_preferred(price, best_price, fungibility):
                best, best_price = assigned, price
        tried = -1 if index == len(flavors) - 1 else index
        for one in best.values():
            one.tried_index = tried
        if best_price[0] is PreemptionMode.FIT:
            self.reasons = []
        return best

    def _is_open(self, flavor: str, resource: str) -> bool:
        """True if the flavor is allowed for one of the pod sets, where flavors are pinned."""
        pinned = self._assigner.pinned
        if not pinned:
            return True
        names = (self._pod_sets[i].name for i in self._group)
        return any(pinned.get(name, {}).get(resource) == flavor for name in names)

    def _judge(self, choice: FlavorChoice) -> tuple[Price, dict[str, FlavorAssignment]]:
        """The price of the flavor for all resources together: that of its worst one."""
        assigner = self._assigner
        price: Price = (PreemptionMode.FIT, 0)
        assigned: dict[str, FlavorAssignment] = {}
        reasons: list[str] = []
        pending: PendingReason | None = None
        replaced = self._replaced()
        for resource, amount in self._requests.items():
            fr = choice.frs.get(resource)
            if fr is None:
                if assigner.omitted_is_unlimited:
                    assigned[resource] = FlavorAssignment(choice.name, Mode.FIT, 0)
                    continue
                reasons.append(f"flavor {choice.name} does not provide resource {resource}")
                price, pending = _WORST, PendingReason.NO_MATCHING_FLAVOR
                break
            more = amount - replaced.get(resource, 0)
            assumed = self._usage.get(fr, 0)
            one, message, why = assigner.price(self._info, fr, resource, assumed, more)
            if message is not None:
                reasons.append(message)
                pending = why
            if is_preferred(price, one, assigner.fungibility):
                price = one
            if price[0] is PreemptionMode.NO_FIT:
                break
            assigned[resource] = FlavorAssignment(choice.name, one[0].mode, one[1], fr=fr)
        self._note(choice.name, price, reasons, pending)
        return price, assigned

    def _note(
        self, flavor: str, price: Price, reasons: list[str], pending: PendingReason | None
    ) -> None:
        self.attempts.append(Attempt(flavor, *price, reasons=reasons, pending_reason=pending))
        self.reasons += reasons
        if pending is not None and NEARNESS[pending] > NEARNESS[self.pending_reason]:
            self.pending_reason = pending

    def _replaced(self) -> Mapping[str, int]:
        replaces = self._info.replaces
        if not replaces:
            return {}
        return _sum([replaces[i].requests for i in self._group if i < len(replaces)])

    def refusal(self, choice: FlavorChoice) -> str | None:
        """Reason why pods of this group cannot run on the flavor at all, else None."""
        flavor = choice.flavor
        if flavor is None:
            return f"flavor {choice.name} not found"
        allowed = self._info.workload.allowed_flavors
        if allowed is not None and choice.name not in allowed:
            return f"flavor {choice.name} is not allowed by the workload"
        original = self._original_flavor()
        if original is not None and original != choice.name:
            return (
                f"could not assign {choice.name} flavor since the original workload is assigned: "
                f"{original}"
            )
        queue = self._assigner.queue
        for i in self._group:
            pod_set = self._pod_sets[i].pod_set
            if pod_set is None:
                continue
            wants_topology = pod_set.wants_topology or queue.only_topology
            if choice.open_to_all and not wants_topology:
                continue
            if wants_topology:
                if flavor.topology_name is None:
                    return f"flavor {choice.name} does not support topology-aware scheduling"
                levels = queue.topologies.get(flavor.topology_name, ())
                level = pod_set.required_topology or pod_set.preferred_topology
                if level is not None and level not in levels:
                    return f"flavor {choice.name} does not have the requested level {level}"
            elif flavor.topology_name is not None:
                return f"flavor {choice.name} supports only topology-aware scheduling"
            taint = untolerated(flavor.node_taints, pod_set.tolerations + flavor.tolerations)
            if taint is not None:
                named = f"{taint.key}={taint.value}:{taint.effect}"
                return f"untolerated taint {named} in flavor {choice.name}"
            if not node_affinity_matches(
                pod_set.node_selector, pod_set.affinity, flavor.node_labels, choice.label_keys
            ):
                return f"flavor {choice.name} doesn't match node affinity"
        return None

    def _original_flavor(self) -> str | None:
        replaces = self._info.replaces
        if not replaces:
            return None
        for i in self._group:
            if i < len(replaces):
                for resource in self._requests:
                    if resource in replaces[i].flavors:
                        return replaces[i].flavors[resource]
        return None


def _sum(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for part in parts:
        for name, amount in part.items():
            total[name] = total.get(name, 0) + amount
    return dict(sorted(total.items()))


def grouped(pod_sets: Sequence[PodSetRequests]) -> list[list[int]]:
    """Indices of pod sets that get their flavors together, in order of first appearance."""
    groups: dict[object, list[int]] = {}
    for i, one in enumerate(pod_sets):
        name = one.pod_set.group if one.pod_set is not None else None
        groups.setdefault(i if name is None else name, []).append(i)
    return list(groups.values())

"""Reconciler of DynamicQuotaOrchestrators: adds up the capacity that CapacityProviders report, and
distributes it over the quotas of a ClusterQueue, or of a Cohort and all below it.

Each flavor and resource is distributed by itself, in proportion to the nominal quotas of the specs.
The result is in the status of each ClusterQueue and Cohort, which other controllers may write as
well; quotas that an orchestrator no longer sets stay as they are, as in Kueue.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final

from queuecontroller.cluster.cache.kinds import (
    CAPACITY_PROVIDERS,
    CLUSTER_QUEUES,
    COHORTS,
    ORCHESTRATORS,
)
from queuecontroller.cluster.cache.objects import (
    Document,
    ObjectCache,
    condition_of,
    has_condition,
    is_leaving,
    key_of,
    pruned,
)
from queuecontroller.cluster.status.workload_status import stamp
from queuecontroller.cluster.writers.workqueue import WorkQueue
from queuecontroller.kueueapi import GROUP
from queuecontroller.kueueapi.alpha_fields import MAX_EFFECTIVE_FLAVORS
from queuecontroller.kueueapi.shared_fields import MAX_RESOURCES
from queuecontroller.scheduler.model.compatibility import Feature
from queuecontroller.scheduler.quota.proportional import distribute
from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.errors import ApiRefused
from sluicecommon.kubernetes.quantity import (
    CPU,
    MAX_AMOUNT,
    QuantityError,
    exact_value,
    format_amount,
)
from sluicecommon.kubernetes.resources import Resource

COALESCED_S: Final = 1.0
"""Seconds in which changes of queues and capacity are collected."""
COMPUTED: Final = "EffectiveCapacityComputed"
DISTRIBUTED: Final = "Distributed"
SYNCHRONIZED: Final = "CapacitySynchronized"
"""Condition of a CapacityProvider whose status is up to date."""
_KINDS: Final = {CLUSTER_QUEUES.kind: CLUSTER_QUEUES, COHORTS.kind: COHORTS}
Slice = tuple[str, str]
"""A flavor and a resource."""
Node = tuple[str, str]
"""Kind and name of a ClusterQueue or a Cohort."""


class _Undone(Exception):
    """Capacity cannot be added up or distributed: reason and message of the condition."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason, self.message = reason, message


@dataclass(frozen=True, slots=True)
class Orchestrated:
    """The status that an orchestrator, and its ClusterQueues and Cohorts, should have."""

    capacity: Mapping[str, Mapping[str, str]] | None
    """Amounts by flavor and resource; None: not known."""
    conditions: Mapping[str, tuple[bool, str, str]]
    """Status, reason and message by type."""
    quotas: Mapping[Node, Mapping[str, Any]] = field(default_factory=dict)


class DynamicQuota:
    def __init__(
        self,
        cache: ObjectCache,
        client: ApiClient,
        may_write: Callable[[], bool],
        now_ns: Callable[[], int],
        features: Collection[Feature],
    ) -> None:
        self._cache = cache
        self._client = client
        self._may_write = may_write
        self._now_ns = now_ns
        self._is_on = Feature.DYNAMIC_QUOTA in features
        self.work_queue: WorkQueue[str] = WorkQueue("orchestrator", self._reconcile, 1)

    def add_all(self) -> None:
        if self._is_on:
            for one in self._cache.all_of(ORCHESTRATORS):
                self.work_queue.add_after(key_of(one), COALESCED_S)

    def changed(self, key: str, document: Document | None) -> None:
        """Handle a change of a provider, an orchestrator, a ClusterQueue or a Cohort."""
        self.add_all()

    async def _reconcile(self, name: str) -> None:
        document = self._cache.get(ORCHESTRATORS, name)
        if document is None or is_leaving(document) or not self._may_write():
            return
        wanted = orchestrate(document, self._cache)
        try:
            for (kind, target), quotas in wanted.quotas.items():
                found = self._cache.get(_KINDS[kind], target)
                if found is not None and _effective(found) != quotas:
                    await self._patch(_KINDS[kind], found, {"effectiveQuotas": quotas})
            if patch := self._status(document, wanted):
                await self._patch(ORCHESTRATORS, document, patch)
        except ApiRefused as refused:
            if not refused.conflict and not refused.not_found:
                raise
            self.work_queue.add_after(name, COALESCED_S)

    async def _patch(self, kind: Resource, document: Document, status: Mapping[str, Any]) -> None:
        head = document["metadata"]
        version = str(head["resourceVersion"])
        answer = await self._client.merge_patch(
            kind, head["name"], {"status": dict(status)}, "", "status", version
        )
        self._cache.update(kind, pruned(answer))

    def _status(self, document: Document, wanted: Orchestrated) -> dict[str, Any]:
        """Return the patch of an orchestrator's status; empty if it is right."""
        known = document.get("status") or {}
        conditions = []
        for kind, (holds, reason, message) in wanted.conditions.items():
            before = condition_of(document, kind)
            status = str(holds)
            since = before.get("lastTransitionTime") if before.get("status") == status else None
            conditions.append(
                {
                    "type": kind,
                    "status": status,
                    "reason": reason,
                    "message": message,
                    "observedGeneration": document["metadata"].get("generation", 0),
                    "lastTransitionTime": since or stamp(self._now_ns()),
                }
            )
        capacity = None
        if wanted.capacity is not None:
            flavors = [{"name": one, "resources": of} for one, of in wanted.capacity.items()]
            capacity = {"flavors": flavors}
        found = {"conditions": conditions, "effectiveCapacity": capacity}
        return {name: value for name, value in found.items() if known.get(name) != value}


def orchestrate(document: Document, cache: ObjectCache) -> Orchestrated:
    """Return what an orchestrator leads to."""
    root = _root(document)
    try:
        amounts = _capacity(document, cache)
    except _Undone as undone:
        conditions = {COMPUTED: (False, undone.reason, undone.message)}
        if root is not None:
            what = f"The capacity is not known: {undone.message}"
            conditions[DISTRIBUTED] = (False, "EffectiveCapacityNotComputed", what)
        return Orchestrated(None, conditions)
    shown: dict[str, dict[str, str]] = {}
    for (flavor, resource), amount in sorted(amounts.items()):
        shown.setdefault(flavor, {})[resource] = format_amount(resource, amount)
    conditions = {COMPUTED: (True, "Computed", "The capacity of all providers is added up")}
    if root is None:
        return Orchestrated(shown, conditions)
    try:
        targets = _targets(document, root, cache)
        quotas = _quotas(document, targets, amounts)
    except _Undone as undone:
        conditions[DISTRIBUTED] = (False, undone.reason, undone.message)
        return Orchestrated(shown, conditions)
    conditions[DISTRIBUTED] = (True, "QuotasDistributed", "The capacity is distributed")
    return Orchestrated(shown, conditions, quotas)


def _capacity(document: Document, cache: ObjectCache) -> dict[Slice, int]:
    """Return the capacity of all providers, in the scheduler's units. Raises _Undone."""
    total: dict[Slice, Fraction] = {}
    for one in document["spec"]["capacityDiscovery"]["providers"]:
        name = one["name"]
        provider = cache.get(CAPACITY_PROVIDERS, name)
        if provider is None:
            raise _Undone("Misconfigured", f"CapacityProvider {name} does not exist")
        if not has_condition(provider, SYNCHRONIZED):
            raise _Undone("ProviderNotReady", f"CapacityProvider {name} is not synchronized")
        try:
            factor = exact_value(str(one.get("effectiveCapacityMultiplier", 1)))
            for key, amount in _reported(provider):
                total[key] = total.get(key, Fraction(0)) + amount * factor
        except QuantityError as error:
            raise _Undone("AggregationFailed", f"CapacityProvider {name}: {error}") from error
    flavors = {flavor for flavor, _ in total}
    most = max((sum(key[0] == one for key in total) for one in flavors), default=0)
    if len(flavors) > MAX_EFFECTIVE_FLAVORS or most > MAX_RESOURCES:
        raise _Undone("AggregationFailed", f"{len(flavors)} flavors, one of {most} resources")
    return {key: min(MAX_AMOUNT, int(amount * _units(key[1]))) for key, amount in total.items()}


def _reported(provider: Document) -> Iterator[tuple[Slice, Fraction]]:
    named = {one["name"] for one in provider["spec"]["orchestratedFlavors"]}
    capacity = (provider.get("status") or {}).get("capacity") or {}
    for flavor in capacity.get("flavors") or ():
        if flavor["name"] in named:
            for resource, amount in flavor["resources"].items():
                yield (flavor["name"], resource), exact_value(str(amount))


def _units(resource: str) -> int:
    return 1000 if resource == CPU else 1


def _root(document: Document) -> Node | None:
    """Return the root of the quotas that an orchestrator sets; None: it sets none."""
    distribution = document["spec"].get("capacityDistribution")
    if not distribution:
        return None
    reference = distribution["subtreeRootQuotaRef"]
    return reference["kind"], reference["name"]


def _parent(node: Document) -> str:
    spec = node.get("spec") or {}
    return str(spec.get("parentName" if node.get("kind") == COHORTS.kind else "cohortName") or "")


def _above(node: Node, cache: ObjectCache) -> set[Node]:
    """Return the Cohorts above a ClusterQueue or a Cohort."""
    found: set[Node] = set()
    document = cache.get(_KINDS[node[0]], node[1])
    while document is not None and (name := _parent(document)):
        parent = (COHORTS.kind, name)
        if parent in found or parent == node:
            break
        found.add(parent)
        document = cache.get(COHORTS, name)
    return found


def _targets(document: Document, root: Node, cache: ObjectCache) -> dict[Node, Document]:
    """Return the ClusterQueues and Cohorts whose quotas an orchestrator sets. Raises _Undone."""
    others = [
        one
        for one in cache.all_of(ORCHESTRATORS)
        if key_of(one) != key_of(document) and not is_leaving(one) and _root(one) is not None
    ]
    above = _above(root, cache)
    for one in others:
        if _root(one) in above:
            what = f"DynamicQuotaOrchestrator {key_of(one)} distributes from a Cohort above"
            raise _Undone("ConflictingDynamicQuotaOrchestrator", what)
        if _root(one) == root and _seniority(one) < _seniority(document):
            what = f"DynamicQuotaOrchestrator {key_of(one)} has the same root, and is older"
            raise _Undone("ConflictingDynamicQuotaOrchestrator", what)
    if cache.get(_KINDS[root[0]], root[1]) is None:
        raise _Undone("Misconfigured", f"{root[0]} {root[1]} does not exist")
    found = {
        node: one
        for kind, resource in _KINDS.items()
        for one in cache.all_of(resource)
        if not is_leaving(one)
        and ((node := (kind, key_of(one))) == root or root in _above(node, cache))
    }
    distributing = {key_of(one): one for one in others}
    for (kind, name), one in sorted(found.items()):
        if _is_anothers(one, document, root, distributing, cache):
            by = _effective(one)["orchestratorRef"]
            what = f"the quotas of {kind} {name} are those of {by['kind']} {by['name']}"
            raise _Undone("EffectiveQuotasConflict", what)
    return found


def _seniority(orchestrator: Document) -> tuple[str, str]:
    head = orchestrator["metadata"]
    return str(head.get("creationTimestamp") or ""), str(head.get("uid") or "")


def _is_anothers(
    target: Document,
    mine: Document,
    root: Node,
    distributing: Mapping[str, Document],
    cache: ObjectCache,
) -> bool:
    """Return True if other than this orchestrator sets the quotas of a ClusterQueue or a Cohort. An
    orchestrator that distributes nothing, or from below, does not hinder it."""
    by = _effective(target).get("orchestratorRef")
    if not by or (by["kind"], by["name"]) == (ORCHESTRATORS.kind, key_of(mine)):
        return False
    if by["kind"] != ORCHESTRATORS.kind or by.get("apiGroup") not in (None, "", GROUP):
        return True
    other = distributing.get(by["name"])
    if other is None or condition_of(other, DISTRIBUTED).get("status") == "False":
        return False
    below = _root(other)
    return below != root and (below is None or root not in _above(below, cache))


def _effective(document: Document) -> Mapping[str, Any]:
    found: Mapping[str, Any] = (document.get("status") or {}).get("effectiveQuotas") or {}
    return found


def _quotas(
    document: Document, targets: Mapping[Node, Document], capacity: Mapping[Slice, int]
) -> dict[Node, dict[str, Any]]:
    """Return the effective quotas of each ClusterQueue and Cohort. Raises _Undone.

    `nominalQuota: auto` follows the nodes by itself: it has no part in the distribution.
    """
    weights: dict[Slice, dict[str, Fraction]] = {}
    names = {node: f"{one['metadata'].get('uid')}/{node[0]}" for node, one in targets.items()}
    try:
        for node, one in targets.items():
            for key, quota in _each_quota((one.get("spec") or {}).get("resourceGroups") or ()):
                if key in capacity and quota["nominalQuota"] != "auto":
                    weight = exact_value(str(quota["nominalQuota"]))
                    weights.setdefault(key, {})[names[node]] = weight
    except QuantityError as error:
        raise _Undone("Misconfigured", str(error)) from error
    shares = {key: distribute(capacity[key], of) for key, of in weights.items()}
    reference = {"apiGroup": GROUP, "kind": ORCHESTRATORS.kind, "name": key_of(document)}
    return {
        node: {
            "orchestratorRef": reference,
            "resourceGroups": [
                _with_shares(group, {key: of.get(names[node]) for key, of in shares.items()}, node)
                for group in (one.get("spec") or {}).get("resourceGroups") or ()
            ],
        }
        for node, one in targets.items()
    }


def _each_quota(groups: Collection[Any]) -> Iterator[tuple[Slice, Mapping[str, Any]]]:
    for group in groups:
        for flavor in group["flavors"]:
            for quota in flavor["resources"]:
                yield (flavor["name"], quota["name"]), quota


def _with_shares(
    group: Mapping[str, Any], shares: Mapping[Slice, int | None], node: Node
) -> dict[str, Any]:
    """Return a resource group with these nominal quotas. A ClusterQueue lends no more than it
    has."""
    flavors = []
    for flavor in group["flavors"]:
        resources = []
        for quota in flavor["resources"]:
            resource = quota["name"]
            share = shares.get((flavor["name"], resource))
            if share is not None:
                quota = {**quota, "nominalQuota": format_amount(resource, share)}
                lends = quota.get("lendingLimit") if node[0] == CLUSTER_QUEUES.kind else None
                if lends is not None and exact_value(str(lends)) * _units(resource) > share:
                    quota["lendingLimit"] = quota["nominalQuota"]
            resources.append(quota)
        flavors.append({**flavor, "resources": resources})
    return {**group, "flavors": flavors}

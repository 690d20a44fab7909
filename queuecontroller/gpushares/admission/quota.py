"""Quota per namespace on memory and cores of devices, from the keys `limits.<resource>` and
`requests.<resource>` of ResourceQuota objects, which Kubernetes itself does not count, or counts
without the number of cards.

The usage of a container is the amount per card times the number of cards; init containers count
with their maximum. The quota is checked twice. At creation a pod must fit beside all existing pods
and those that were admitted but are not yet in the watch. At binding it must fit beside the bound
pods. Only the leader checks at binding, so the quota holds even if several replicas admit at the
same time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from sluicecommon.kubernetes.quantity import QuantityError, parse_amount

PREFIXES: Final = ("limits.", "requests.")
WATCH_DELAY_NS: Final = 10_000_000_000
"""An admitted pod is in the watch by then, or another admission plugin refused it."""
MAX_EXPECTED: Final = 100_000
Use = Mapping[str, int]
"""Amounts by resource name."""


@dataclass(frozen=True, slots=True)
class Quota:
    namespace: str
    name: str
    hard: Use
    """Limits by resource name: the smallest of its keys."""
    scopes: tuple[tuple[str, str, tuple[str, ...]], ...] = ()
    """Name, operator, values. The quota counts pods that match all of them."""

    def counts(self, pod: PodUse) -> bool:
        return all(_matches(*one, pod) for one in self.scopes)


@dataclass(frozen=True, slots=True)
class PodUse:
    namespace: str
    use: Use
    ticket: str = ""
    """UID of the admission request that admitted the pod."""
    priority_class: str = ""
    has_deadline: bool = False
    best_effort: bool = False
    bound: bool = False


@dataclass(slots=True)
class _Expected:
    pod: PodUse
    until_ns: int


@dataclass(slots=True)
class Quotas:
    resources: frozenset[str]
    """Resource names that are counted."""
    _quotas: dict[str, dict[str, Quota]] = field(default_factory=dict)
    _pods: dict[str, dict[str, PodUse]] = field(default_factory=dict)
    """Pods by namespace and UID."""
    _sums: dict[str, dict[str, int]] = field(default_factory=dict)
    """Sums over all pods by namespace and resource name, which is all that quotas without scopes
    need."""
    _namespace_of: dict[str, str] = field(default_factory=dict)
    _expected: dict[str, dict[str, _Expected]] = field(default_factory=dict)
    """Admitted pods that are not yet in the watch, by namespace and ticket."""

    # -- objects in the cluster -------------------------------------------------------------------

    def quota(self, document: Mapping[str, Any]) -> bool:
        """Store a ResourceQuota. True if a pod that it refused may fit now."""
        made = read_quota(document, self.resources)
        here = self._quotas.setdefault(made.namespace, {})
        before = here.pop(made.name, None)
        if made.hard:
            here[made.name] = made
        return before is not None and before != made

    def no_quota(self, namespace: str, name: str) -> bool:
        """Remove a ResourceQuota. True if it was stored."""
        return self._quotas.get(namespace, {}).pop(name, None) is not None

    def pod(self, uid: str, pod: PodUse) -> None:
        before = self._pods.get(pod.namespace, {}).get(uid)
        self.no_pod(uid)
        expected = self._expected.get(pod.namespace, {})
        expected.pop(pod.ticket, None)
        if before is None or before.use != pod.use:
            expected.pop(f"change {uid}", None)
        if any(pod.use.values()):
            self._pods.setdefault(pod.namespace, {})[uid] = pod
            self._namespace_of[uid] = pod.namespace
            self._add(pod, 1)

    def no_pod(self, uid: str) -> None:
        """Remove a pod that was deleted or has ended."""
        namespace = self._namespace_of.pop(uid, None)
        if namespace is not None:
            self._add(self._pods[namespace].pop(uid), -1)

    def _add(self, pod: PodUse, sign: int) -> None:
        sums = self._sums.setdefault(pod.namespace, {})
        for resource, amount in pod.use.items():
            sums[resource] = sums.get(resource, 0) + sign * amount

    # -- checks -----------------------------------------------------------------------------------

    def let_in(self, pod: PodUse, now_ns: int, *, dry: bool = False) -> str:
        """Reason why a new pod does not fit; empty if it does. It then counts from now on unless
        `dry`."""
        here = self._quotas.get(pod.namespace)
        if not here:
            return ""
        expected = self._expected.setdefault(pod.namespace, {})
        for ticket in [key for key, one in expected.items() if one.until_ns <= now_ns]:
            del expected[ticket]
        coming = [one.pod for one in expected.values()]
        there = self._pods.get(pod.namespace, {}).values()
        sums = self._sums.get(pod.namespace, {})

        def used(quota: Quota, resource: str) -> int:
            found = _sum(quota, resource, there) if quota.scopes else sums.get(resource, 0)
            return found + _sum(quota, resource, coming)

        why = _why_not(here.values(), pod, used)
        if not why and not dry and pod.ticket and len(expected) < MAX_EXPECTED:
            expected[pod.ticket] = _Expected(pod, now_ns + WATCH_DELAY_NS)
        return why

    def change(self, uid: str, pod: PodUse, now_ns: int, *, dry: bool = False) -> str:
        """Reason why an existing pod may not grow to `pod.use`; empty if it may. The difference
        then counts until the change is in the watch, unless `dry`."""
        before = self._pods.get(pod.namespace, {}).get(uid)
        had = before.use if before is not None else {}
        more = {one: amount - had.get(one, 0) for one, amount in pod.use.items()}
        more = {one: amount for one, amount in more.items() if amount > 0}
        if not more:
            return ""
        return self.let_in(replace(pod, use=more, ticket=f"change {uid}"), now_ns, dry=dry)

    def bind(self, uid: str, pod: PodUse) -> str:
        """Reason why a pod may not be bound; empty if it may. Pods being bound count as bound."""
        here = self._quotas.get(pod.namespace)
        if not here:
            return ""
        there = self._pods.get(pod.namespace, {})
        bound = [one for other, one in there.items() if one.bound and other != uid]
        return _why_not(here.values(), pod, partial(_sum, others=bound))

    # -- figures ----------------------------------------------------------------------------------

    def used(self) -> dict[tuple[str, str], int]:
        """Usage of all pods by namespace and resource name."""
        return {
            (namespace, resource): amount
            for namespace, sums in self._sums.items()
            for resource, amount in sums.items()
            if amount
        }

    def limits(self) -> dict[tuple[str, str], int]:
        """Limits by namespace and resource name: the smallest where several quotas without scopes
        have one."""
        found: dict[tuple[str, str], int] = {}
        for namespace, quotas in self._quotas.items():
            for quota in quotas.values():
                for resource, amount in quota.hard.items() if not quota.scopes else ():
                    key = namespace, resource
                    found[key] = min(found.get(key, amount), amount)
        return found


def _sum(quota: Quota, resource: str, others: Iterable[PodUse]) -> int:
    return sum(one.use.get(resource, 0) for one in others if quota.counts(one))


def _why_not(quotas: Iterable[Quota], pod: PodUse, used_of: Callable[[Quota, str], int]) -> str:
    for quota in quotas:
        if not quota.counts(pod):
            continue
        for resource, limit in quota.hard.items():
            wanted = pod.use.get(resource, 0)
            if not wanted:
                continue
            used = used_of(quota, resource)
            if used + wanted > limit:
                return (
                    f"exceeding resource quota {quota.name}: {resource}: {wanted} are requested,"
                    f" {used} of {limit} are used"
                )
    return ""


def _matches(scope: str, operator: str, values: tuple[str, ...], pod: PodUse) -> bool:
    match scope:
        case "Terminating":
            return pod.has_deadline
        case "NotTerminating":
            return not pod.has_deadline
        case "BestEffort":
            return pod.best_effort
        case "NotBestEffort":
            return not pod.best_effort
        case "PriorityClass":
            match operator:
                case "In":
                    return pod.priority_class in values
                case "NotIn":
                    return pod.priority_class not in values
                case "DoesNotExist":
                    return not pod.priority_class
            return bool(pod.priority_class)
    return False  # A scope that is unknown here matches no pod.


def read_quota(document: Mapping[str, Any], resources: frozenset[str]) -> Quota:
    """Parse a ResourceQuota. Malformed amounts are skipped: the API server refuses them."""
    head, spec = document.get("metadata") or {}, document.get("spec") or {}
    hard: dict[str, int] = {}
    for key, value in (spec.get("hard") or {}).items():
        prefix = next((one for one in PREFIXES if key.startswith(one)), "")
        resource = key.removeprefix(prefix)
        if not prefix or resource not in resources:
            continue
        try:
            amount = parse_amount(resource, value)
        except QuantityError:
            continue
        hard[resource] = min(hard.get(resource, amount), amount)
    scopes: list[tuple[str, str, tuple[str, ...]]]
    scopes = [(str(one), "Exists", ()) for one in spec.get("scopes") or ()]
    selector = (spec.get("scopeSelector") or {}).get("matchExpressions") or ()
    scopes += [
        (
            str(one.get("scopeName")),
            str(one.get("operator")),
            tuple(map(str, one.get("values") or ())),
        )
        for one in selector
    ]
    return Quota(str(head.get("namespace")), str(head.get("name")), hard, tuple(scopes))

"""Quota per namespace on memory and cores of devices: what ResourceQuota objects say under
`limits.<resource>` and `requests.<resource>`, which Kubernetes itself does not count, or counts
without the number of cards.

Of a pod counts, for each container, the amount on a card times the number of cards; of those that
end before the others begin the largest. Two walls: as a pod is made it must fit beside all pods
there are, with those that have been let in and not been heard of yet; and as it is bound it must
fit beside those that are bound. The second is kept by the one who decides, and holds whatever
several replicas let in at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from sluicecommon.kubernetes.quantity import QuantityError, parse_amount

PREFIXES: Final = ("limits.", "requests.")
HEARD_WITHIN_NS: Final = 10_000_000_000
"""A pod that was let in is in the watch by then, or was refused by somebody else."""
MOST_EXPECTED: Final = 100_000
Use = Mapping[str, int]
"""By resource."""


@dataclass(frozen=True, slots=True)
class Quota:
    namespace: str
    name: str
    hard: Use
    """By resource: the least of its keys."""
    scopes: tuple[tuple[str, str, tuple[str, ...]], ...] = ()
    """Name, operator, values: it counts the pods that match all of them."""

    def counts(self, pod: PodUse) -> bool:
        return all(_matches(*one, pod) for one in self.scopes)


@dataclass(frozen=True, slots=True)
class PodUse:
    namespace: str
    use: Use
    ticket: str = ""
    """In which question it was let in."""
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
    """Those that are counted."""
    _quotas: dict[str, dict[str, Quota]] = field(default_factory=dict)
    _pods: dict[str, dict[str, PodUse]] = field(default_factory=dict)
    """By namespace and UID."""
    _sums: dict[str, dict[str, int]] = field(default_factory=dict)
    """Of all pods of a namespace, by resource: what most quotas ask for."""
    _namespace_of: dict[str, str] = field(default_factory=dict)
    _expected: dict[str, dict[str, _Expected]] = field(default_factory=dict)
    """By namespace and ticket."""

    # -- what there is ----------------------------------------------------------------------------

    def quota(self, document: Mapping[str, Any]) -> bool:
        """A ResourceQuota as it is now; whether it may let in what it did not."""
        made = read_quota(document, self.resources)
        here = self._quotas.setdefault(made.namespace, {})
        before = here.pop(made.name, None)
        if made.hard:
            here[made.name] = made
        return before is not None and before != made

    def no_quota(self, namespace: str, name: str) -> bool:
        """Whether there was one."""
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
        """It is gone, or over."""
        namespace = self._namespace_of.pop(uid, None)
        if namespace is not None:
            self._add(self._pods[namespace].pop(uid), -1)

    def _add(self, pod: PodUse, sign: int) -> None:
        sums = self._sums.setdefault(pod.namespace, {})
        for resource, amount in pod.use.items():
            sums[resource] = sums.get(resource, 0) + sign * amount

    # -- questions --------------------------------------------------------------------------------

    def let_in(self, pod: PodUse, now_ns: int, *, dry: bool = False) -> str:
        """Why a new pod does not fit, empty: it does, and counts from now on unless it is only
        asked."""
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
        if not why and not dry and pod.ticket and len(expected) < MOST_EXPECTED:
            expected[pod.ticket] = _Expected(pod, now_ns + HEARD_WITHIN_NS)
        return why

    def change(self, uid: str, pod: PodUse, now_ns: int, *, dry: bool = False) -> str:
        """Why a pod that is there may not take so much from now on, empty: it may, and the
        difference counts until the change is heard of."""
        before = self._pods.get(pod.namespace, {}).get(uid)
        had = before.use if before is not None else {}
        more = {one: amount - had.get(one, 0) for one, amount in pod.use.items()}
        more = {one: amount for one, amount in more.items() if amount > 0}
        if not more:
            return ""
        return self.let_in(replace(pod, use=more, ticket=f"change {uid}"), now_ns, dry=dry)

    def bind(self, uid: str, pod: PodUse) -> str:
        """Why a pod may not be bound, empty: it may. Those that are being bound count as bound."""
        here = self._quotas.get(pod.namespace)
        if not here:
            return ""
        there = self._pods.get(pod.namespace, {})
        bound = [one for other, one in there.items() if one.bound and other != uid]
        return _why_not(here.values(), pod, partial(_sum, others=bound))

    # -- figures ----------------------------------------------------------------------------------

    def used(self) -> dict[tuple[str, str], int]:
        """By namespace and resource, of all pods there are."""
        return {
            (namespace, resource): amount
            for namespace, sums in self._sums.items()
            for resource, amount in sums.items()
            if amount
        }

    def limits(self) -> dict[tuple[str, str], int]:
        """By namespace and resource: the least, where several say one for all pods."""
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
                    f"exceeding resource quota {quota.name}: {resource}: {wanted} are asked for,"
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
    return False  # of a scope that Kubernetes has and we do not: nothing is counted


def read_quota(document: Mapping[str, Any], resources: frozenset[str]) -> Quota:
    """What cannot be read limits nothing: Kubernetes refuses it."""
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

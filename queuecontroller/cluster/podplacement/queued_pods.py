"""GPU places of queued pods: what the pods of a Workload will request, and which reserved place a
pod may take.

An annotation names a pod's Workload, and any user who may create pods in the namespace can write
it. So it counts only if the pod's owners are the Workload's, as far as they are known here, and if
the pod requests just what is reserved. It cannot give a user more than what the namespace has
anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from queuecontroller.cluster.cache.job_context import above
from queuecontroller.cluster.cache.kinds import WORKLOADS
from queuecontroller.cluster.cache.objects import (
    Document,
    ObjectCache,
    annotations_of,
    controller_of,
    labels_of,
)
from queuecontroller.cluster.podplacement.gpu_pods import Budgets
from queuecontroller.cluster.podplacement.restarts import JobRestarts
from queuecontroller.cluster.podwebhooks.share_pods import SharePods
from queuecontroller.frameworks.names import (
    ELASTIC,
    POD_SET,
    REPLACEMENT_FOR,
    SLICE_NAME,
    WORKLOAD,
)
from queuecontroller.gpushares.admission import Rules, admit
from queuecontroller.gpushares.admission.names import ADMITTED_AS as TICKET
from queuecontroller.gpushares.extender.answers import Defaults
from queuecontroller.gpushares.extender.pods import PodAsk, PodPlace, read_pod
from queuecontroller.gpushares.extender.queued_room import Asks, mismatch
from queuecontroller.gpushares.extender.reservations import Reservations
from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.state.book import Sharing

ELASTIC_MARKS: Final = frozenset((ELASTIC, REPLACEMENT_FOR, SLICE_NAME))
NOTHING: Final[Asks] = MappingProxyType({})
DEFAULT_SCHEDULER: Final = "default-scheduler"
LONGEST_REASON: Final = 500
SPARE: Final = 100
"""Deleted Workloads that are remembered before they are cleaned up."""


class QueuedAsks:
    """GPU requests of pods that do not exist yet, from their templates after the pods' webhook."""

    def __init__(self, cache: ObjectCache, rules: Callable[[], Rules], defaults: Defaults) -> None:
        self._cache = cache
        self._rules = rules
        self._defaults = defaults
        self._known: dict[WorkloadKey, tuple[object, Asks]] = {}
        """Requests of each Workload, with the version of its spec."""

    def of(self, key: WorkloadKey) -> Asks:
        document = self._cache.get(WORKLOADS, key)
        if document is None:
            self._known.pop(key, None)
            return NOTHING
        head = document["metadata"]
        version = (
            head.get("uid"),
            head.get("generation") or head.get("resourceVersion"),
            self._rules().profiles,
        )
        known = self._known.get(key)
        if known is None or known[0] != version:
            known = self._known[key] = (version, self._read(document))
            if len(self._known) > 2 * self._cache.count(WORKLOADS) + SPARE:
                there = {one: each for one, each in self._known.items() if self._has(one)}
                self._known = there
        return known[1]

    def _has(self, key: WorkloadKey) -> bool:
        return self._cache.get(WORKLOADS, key) is not None

    def _read(self, document: Document) -> Asks:
        found: dict[str, PodAsk] = {}
        if ELASTIC_MARKS & annotations_of(document).keys():
            return NOTHING  # A slice takes over pods of an earlier one, and their places.
        for one in (document.get("spec") or {}).get("podSets") or ():
            ask = self._ask(document, one.get("template") or {})
            if ask is not None:
                found[str(one.get("name") or "main")] = ask
        return found or NOTHING

    def _ask(self, document: Document, template: Mapping[str, Any]) -> PodAsk | None:
        """Return the request of a pod set's pods; None if they request no GPU shares, or another
        scheduler places them."""
        rules = self._rules()
        given = template.get("metadata") or {}
        head = {**given, "name": document["metadata"]["name"]}
        head["namespace"] = document["metadata"].get("namespace")
        if isinstance(given.get("annotations"), Mapping):  # A pod exists already.
            head["annotations"] = {k: v for k, v in annotations_of(template).items() if k != TICKET}
        head["labels"] = {**(given.get("labels") or {}), POD_SET: "main"}
        pod = {"metadata": head, "spec": template.get("spec") or {}}
        try:
            verdict = admit(rules, pod, "", "")
            made = verdict.pod
            scheduler = str(made["spec"].get("schedulerName") or DEFAULT_SCHEDULER)
            ours = rules.served | ({rules.scheduler} | rules.replaced if rules.scheduler else set())
            if scheduler not in ours:
                return None
            ask = read_pod(made, self._defaults.names, self._defaults.request)
            if verdict.problems and ask.containers:  # Its pods will be refused, too.
                text = "; ".join(map(str, verdict.problems))
                ask = replace(ask, wrong=f"its pods are refused: {text}"[:LONGEST_REASON])
        except (KeyError, TypeError, AttributeError, ValueError):
            return None  # The API server will refuse its pods.
        return ask if ask.containers or ask.wrong else None


def sharing_of(
    cache: ObjectCache, defaults: Defaults, pods: SharePods | None, budgets: Budgets
) -> Sharing:
    """Return how queued pods share GPUs; `pods` has the rules by which pods are mutated."""
    rules = (lambda: pods.rules) if pods is not None else Rules
    asks = QueuedAsks(cache, rules, defaults).of
    restarts = JobRestarts(cache, budgets)
    return Sharing(defaults, asks, restarts, restarts)


class QueuedPods:
    def __init__(
        self,
        cache: ObjectCache,
        reserved: Reservations,
        defaults: Defaults,
        is_there: Callable[[str], bool],
    ) -> None:
        """`is_there` returns True if a pod with this UID exists."""
        self._cache = cache
        self._reserved = reserved
        self._defaults = defaults
        self._is_there = is_there

    def place(self, pod: Document, nodes: Sequence[str] | None) -> PodPlace | str | None:
        """Return a queued pod's place; see `extender.answers.Queued`."""
        head = pod["metadata"]
        name, uid = annotations_of(pod).get(WORKLOAD), str(head.get("uid") or "")
        key = WorkloadKey(f"{head.get('namespace')}/{name}")
        if name and ((self._cache.get(WORKLOADS, key) or {}).get("status") or {}).get(
            "checkpointed"
        ):
            return f"Workload {key} has no quota: its pod was checkpointed, and is not replaced"
        if not name or not uid or not self._reserved.has(key):
            return None
        pod_set = str(labels_of(pod).get(POD_SET) or "main")
        slots = [one for one in self._reserved.slots(key) if one.pod_set == pod_set]
        if not slots or not self._belongs(pod, key, uid):
            return None
        ask = read_pod(pod, self._defaults.names, self._defaults.request)
        if not ask.containers and not ask.wrong:
            return None
        if why := mismatch(slots[0].place, ask):
            return f"Workload {key}: {why}"
        wanted: Collection[str] | None = set(nodes) if nodes is not None else None
        found = self._reserved.offer(key, pod_set, uid, wanted, self._is_there)
        if found is None:
            return (
                f"all {len(slots)} places reserved for pod set {pod_set} of Workload {key}"
                " are held by its other pods, which have not ended"
            )
        return found

    def _belongs(self, pod: Document, key: WorkloadKey, uid: str) -> bool:
        """Return True if a pod has the Workload's owner among its own.

        An owner of a kind that is not followed here is trusted.
        """
        workload = self._cache.get(WORKLOADS, key)
        if workload is None:
            return False
        owners = {one.get("uid") for one in workload["metadata"].get("ownerReferences") or ()}
        if not owners or uid in owners:
            return True
        last = pod
        namespace = str(pod["metadata"].get("namespace") or "")
        for one in above(self._cache, pod, namespace):
            if one["metadata"].get("uid") in owners:
                return True
            last = one
        unknown = controller_of(last)
        return bool(unknown)

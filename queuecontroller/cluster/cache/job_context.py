"""Context of a job, from the cache of any replica: its namespace's default queue, and its
owners."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from queuecontroller.cluster.cache.kinds import (
    CHECKS,
    CLUSTER_QUEUES,
    LOCAL_QUEUES,
    PRIORITY_CLASSES,
    RUNTIMES,
)
from queuecontroller.cluster.cache.objects import (
    Document,
    ObjectCache,
    controller_of,
    is_answered_by,
    is_leaving,
    labels_of,
)
from queuecontroller.cluster.cache.policy import Policy
from queuecontroller.frameworks import (
    Framework,
    Holding,
    PriorityClass,
    Setting,
    frameworks,
    group_of,
    group_of_set,
    is_active,
    is_elastic,
    is_managed,
    runtime_of,
)
from queuecontroller.frameworks.names import DEFAULT_CLASS, MULTIKUEUE
from queuecontroller.frameworks.serving import SET
from queuecontroller.scheduler.model.compatibility import Feature
from sluicecommon.kubernetes.resources import NAMESPACES, STATEFUL_SETS, Resource
from sluicecommon.reader import ManifestError

DEEPEST: Final = 8
"""Levels of owners that are followed."""


def resource_of(framework: Framework) -> Resource:
    return Resource(framework.group, framework.versions[0], framework.plural, framework.kind)


FRAMEWORKS: Final[Mapping[Resource, Framework]] = {resource_of(one): one for one in frameworks()}
KINDS: Final[Mapping[Resource, Framework]] = {
    kind: one for kind, one in FRAMEWORKS.items() if one.holding is Holding.SUSPEND
}
"""Kinds of job that have a field to suspend them."""
DISPATCHED: Final = frozenset(kind for kind, one in KINDS.items() if one.managed_by)
"""Kinds of job that MultiKueue can run in another cluster: this cluster's controllers leave them
alone if managedBy says so."""
JOBS: Final = next(kind for kind in KINDS if kind.kind == "Job")
"""Kind of Jobs, which other jobs create, too."""
RAY_CLUSTERS: Final = next(kind for kind in KINDS if kind.kind == "RayCluster")
"""Kind of RayClusters, which RayJobs and RayServices make."""
SETS: Final = resource_of(SET)
"""Kind of LeaderWorkerSets."""
FOLLOWED: Final = (*KINDS, SETS, STATEFUL_SETS)
"""Kinds that are watched if they are served. Deployments are queued by their pods alone; those that
name a queue are watched beside these, since a webhook may have missed them."""
_BY_NAME: Final = {(kind.group, kind.kind): kind for kind in FRAMEWORKS}


def kind_of(owner: Mapping[str, Any]) -> Resource | None:
    """Return the kind of an owner reference or object; None if no framework has it."""
    group, _, _ = str(owner.get("apiVersion") or "").rpartition("/")
    return _BY_NAME.get((group, str(owner.get("kind") or "")))


def setting(
    cache: ObjectCache,
    document: Document,
    namespace: str,
    priority_of: Callable[[PriorityClass | None], int | None] = lambda _: None,
) -> Setting:
    default = cache.get(LOCAL_QUEUES, f"{namespace}/default") is not None
    policy = cache.policy
    home = cache.get(NAMESPACES, namespace)
    selected = policy.namespaces.matches(
        {**(labels_of(home) if home else {}), "kubernetes.io/metadata.name": namespace}
    )
    managed = policy.is_external(controller_of(document)) or any(
        (selected and _is_managed(policy, one, default)) or policy.is_external(controller_of(one))
        for one in above(cache, document, namespace)
    )
    made_by = set_of_pod(cache, document, namespace)
    return Setting(
        without_queue=selected and policy.without_queue,
        namespace_selected=selected,
        labels_to_copy=policy.labels_to_copy,
        default_queue=default,
        default_class=Feature.DEFAULT_CLASS in policy.features
        and cache.get(PRIORITY_CLASSES, DEFAULT_CLASS) is not None,
        longest_ready_s=policy.longest_ready_s if Feature.OWN_TIMEOUTS in policy.features else None,
        may_lack_pods=Feature.MAX_NOT_READY in policy.features,
        fixed_upgrades=Feature.UPGRADE_STRATEGY in policy.features,
        spreads=Feature.SPREADING in policy.features,
        parent_managed=managed,
        priority_of=priority_of,
        runtime=_runtime(cache, document, namespace),
        group_total=_size_of(made_by),
        group_owner=_reference(made_by) if made_by is not None else None,
        group_document=made_by,
        clusters=_clusters(cache, document),
        dispatches=partial(_dispatches, cache, namespace),
        made_jobs_active=partial(made_jobs_active, cache, document),
    )


def _clusters(cache: ObjectCache, document: Document) -> tuple[Document, ...]:
    """Return the RayClusters that an elastic RayJob or RayService made."""
    if not is_elastic(document) or kind_of(document) in (RAY_CLUSTERS, JOBS):
        return ()
    return tuple(made_by(cache, document, RAY_CLUSTERS))


def made_by(cache: ObjectCache, document: Document, kind: Resource) -> Iterator[Document]:
    """Yield the objects of a kind that a job controls."""
    namespace, uid = (document["metadata"].get(key) for key in ("namespace", "uid"))
    for one in cache.all_of(kind):
        if one["metadata"].get("namespace") == namespace and controller_of(one).get("uid") == uid:
            yield one


def _dispatches(cache: ObjectCache, namespace: str, queue: str) -> bool:
    """Return True if the ClusterQueue of a LocalQueue has a check of MultiKueue."""
    local = cache.get(LOCAL_QUEUES, f"{namespace}/{queue}")
    name = str(((local or {}).get("spec") or {}).get("clusterQueue") or "")
    spec = (cache.get(CLUSTER_QUEUES, name) or {}).get("spec") or {}
    named = (spec.get("admissionChecksStrategy") or {}).get("admissionChecks") or ()
    checks = (cache.get(CHECKS, str(one.get("name"))) for one in named)
    return any(is_answered_by(one, MULTIKUEUE) for one in checks)


def made_jobs_active(cache: ObjectCache, document: Document) -> bool:
    """Return True if a Job that this job made, directly or not, still has pods."""
    namespace, uid = (document["metadata"].get(key) for key in ("namespace", "uid"))
    return kind_of(document) != JOBS and any(
        one["metadata"].get("namespace") == namespace
        and is_active(KINDS[JOBS], one)
        and any(each["metadata"].get("uid") == uid for each in above(cache, one, namespace))
        for one in cache.all_of(JOBS)
    )


def _runtime(cache: ObjectCache, document: Document, namespace: str) -> Document | None:
    kind = kind_of(document)
    try:
        named = runtime_of(FRAMEWORKS[kind], document) if kind is not None else None
    except ManifestError:
        return None
    if named is None:
        return None
    for one in RUNTIMES:
        if one.kind == named[0]:
            return cache.get(one, f"{namespace}/{named[1]}" if one.namespaced else named[1])
    return None


def set_of_pod(cache: ObjectCache, pod: Document, namespace: str) -> Document | None:
    """Return the StatefulSet whose group a pod is in: the one that controls it, unless its group is
    another's. The StatefulSets of a LeaderWorkerSet are not queued; its groups are."""
    found = _set_named(cache, controller_of(pod), namespace)
    if found is None:
        return None
    name, uid = str(found["metadata"]["name"]), str(found["metadata"].get("uid"))
    return found if group_of(pod) in (group_of_set(name, uid), group_of_set(name)) else None


def set_of_group(cache: ObjectCache, workload: Document) -> Document | None:
    """Return the StatefulSet whose pods a Workload is for; it may be scaled to zero."""
    namespace = workload["metadata"].get("namespace") or ""
    for owner in workload["metadata"].get("ownerReferences") or ():
        found = _set_named(cache, owner, namespace)
        if found is not None and not is_leaving(found):
            return found
    return None


def _set_named(cache: ObjectCache, owner: Mapping[str, Any], namespace: str) -> Document | None:
    if kind_of(owner) != STATEFUL_SETS:
        return None
    found = cache.get(STATEFUL_SETS, f"{namespace}/{owner.get('name')}")
    return found if found is not None and found["metadata"].get("uid") == owner["uid"] else None


def is_scaled_to_zero(stateful_set: Document) -> bool:
    return _size_of(stateful_set) == 0


def _size_of(stateful_set: Document | None) -> int | None:
    """Return spec.replicas; its pods' labels may give an older size."""
    replicas = ((stateful_set or {}).get("spec") or {}).get("replicas")
    return replicas if isinstance(replicas, int) else None


def _reference(document: Document) -> dict[str, str]:
    head = document["metadata"]
    return {
        "apiVersion": STATEFUL_SETS.api_version,
        "kind": STATEFUL_SETS.kind,
        "name": head["name"],
        "uid": head["uid"],
    }


def above(cache: ObjectCache, document: Document, namespace: str) -> Iterator[Document]:
    """Yield the controller, its controller, and so on, as far as the cache has them."""
    for _ in range(DEEPEST):
        owner = controller_of(document)
        kind = kind_of(owner)
        found = cache.get(kind, f"{namespace}/{owner.get('name')}") if kind else None
        if found is None or found["metadata"].get("uid") != owner.get("uid"):
            return
        yield found
        document = found


def _is_managed(policy: Policy, document: Document, default: bool) -> bool:
    kind = kind_of(document)
    if kind is None or not policy.wants(FRAMEWORKS[kind]):
        return False
    return is_managed(FRAMEWORKS[kind], document, Setting(default_queue=default))

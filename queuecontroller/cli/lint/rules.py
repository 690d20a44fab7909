"""The rules of `lint`. Each examines all manifests together and yields findings."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from queuecontroller.cli.lint.findings import Finding, Severity
from queuecontroller.cli.simulate.run import Player
from queuecontroller.kueueapi.manifests.documents import Documents, load
from queuecontroller.kueueapi.manifests.jobs import REPLICATED, SUBMITTED
from queuecontroller.kueueapi.manifests.sources import Source
from queuecontroller.scheduler.explain import explain
from queuecontroller.scheduler.model.objects import AdmissionMode, ClusterQueue, Cohort
from sluicecommon.hami.names import GPU
from sluicecommon.kubernetes.quantity import format_amount
from sluicecommon.reader import Reader

WORKLOAD_KINDS: Final = SUBMITTED | {"Workload"}
GPU_COUNT: Final = "nvidia.com/gpu.count"
NAME_LABEL: Final = "kubernetes.io/metadata.name"
OLD_VERSIONS: Final = {"kueue.x-k8s.io/v1alpha1", "kueue.x-k8s.io/v1alpha2"}


@dataclass(frozen=True, slots=True)
class _All:
    documents: Documents
    places: Mapping[tuple[str, str, str], Source]
    """Sources by kind, namespace and name."""

    def place(self, kind: str, name: str, namespace: str = "") -> Source:
        found = self.places.get((kind, namespace, name))
        return found or Source("", 0, kind, namespace, name)

    def kind(self, kind: str) -> list[Source]:
        return [one for one in self.places.values() if one.kind == kind]

    def queue(self, name: str) -> ClusterQueue | None:
        return next((one for one in self.documents.cluster_queues if one.name == name), None)


def lint(texts: Mapping[str, str]) -> list[Finding]:
    """Findings over all texts (by file name), worst first; one for all replicas of an object."""
    documents = load(texts)
    places = {(one.kind, one.namespace, one.name): one for one in documents.sources}
    everything = _All(documents, places)
    found = dict.fromkeys(one for rule in RULES for one in rule(everything))
    order = {Severity.ERROR: 0, Severity.WARNING: 1}
    return sorted(found, key=lambda f: (order[f.severity], f.file, f.line, f.object, f.field))


def _finding(severity: Severity, rule: str, at: Source, field: str, text: str, fix: str) -> Finding:
    return Finding(severity, rule, at.file, at.line(field), at.label, field, text, fix)


def unreadable(everything: _All) -> Iterator[Finding]:
    """Manifests that the reader refuses: wrong types, unknown fields, unknown versions."""
    for one in everything.documents.problems:
        at = one.source
        yield Finding(
            Severity.ERROR,
            "unreadable",
            at.file,
            one.line,
            at.label,
            one.field,
            one.message,
            one.fix,
        )


def duplicates(everything: _All) -> Iterator[Finding]:
    """Objects that are given twice: applied in this order, the later replaces the earlier."""
    for gone, counts in everything.documents.replaced:
        yield _finding(
            Severity.WARNING,
            "duplicate",
            gone,
            "metadata.name",
            f"is given again in {counts.file}:{counts.first_line}, and the last one wins: this"
            " one is ignored",
            "rename or remove one of them",
        )


def old_versions(everything: _All) -> Iterator[Finding]:
    for at in everything.places.values():
        version = str(at.body.get("apiVersion", ""))
        if version in OLD_VERSIONS and at.kind not in ("Cohort", "Topology"):
            yield _finding(
                Severity.WARNING,
                "old-version",
                at,
                "apiVersion",
                f"{version} is read as v1beta1; Kueue itself no longer serves it",
                "kueue.x-k8s.io/v1beta1",
            )


def dangling(everything: _All) -> Iterator[Finding]:
    """References to objects that do not exist."""
    documents = everything.documents
    queues = {one.name for one in documents.cluster_queues}
    flavors = {one.name for one in documents.flavors}
    checks = {one.name for one in everything.kind("AdmissionCheck")}
    locals_ = {(one.namespace, one.name) for one in documents.local_queues}

    def missing(at: Source, field: str, kind: str, name: str, known: Iterable[str]) -> Finding:
        near = difflib.get_close_matches(name, list(known), n=1)
        fix = f"did you mean {near[0]}?" if near else f"apply {kind} {name} too"
        text = f"{kind} {name} is not among these manifests"
        return _finding(Severity.WARNING, "dangling", at, field, text, fix)

    for local in documents.local_queues:
        if local.cluster_queue not in queues:
            at = everything.place("LocalQueue", local.name, local.namespace)
            yield missing(at, "spec.clusterQueue", "ClusterQueue", local.cluster_queue, queues)
    for queue in documents.cluster_queues:
        at = everything.place("ClusterQueue", queue.name)
        for group in queue.resource_groups:
            for one in group.flavors:
                if one.flavor not in flavors:
                    field = f"spec.resourceGroups.flavors[{one.flavor}].name"
                    yield missing(at, field, "ResourceFlavor", one.flavor, flavors)
        for check in queue.admission_checks:
            if check.name not in checks:
                field = "spec.admissionChecksStrategy.admissionChecks"
                yield missing(at, field, "AdmissionCheck", check.name, checks)
    for workload in documents.workloads:
        if workload.queue_name and (workload.namespace, workload.queue_name) not in locals_:
            at = _place_of_workload(everything, workload.namespace, workload.name)
            near = [f"{namespace}/{name}" for namespace, name in locals_]
            field = "metadata.labels.kueue.x-k8s.io/queue-name"
            name = f"{workload.namespace}/{workload.queue_name}"
            yield missing(at, field, "LocalQueue", name, near)


def cohort_cycles(everything: _All) -> Iterator[Finding]:
    parents = {one.name: one.parent for one in everything.documents.cohorts}
    for name in parents:
        seen, at = [name], parents[name]
        while at and at not in seen:
            seen.append(at)
            at = parents.get(at)
        if at == name:
            yield _finding(
                Severity.ERROR,
                "cohort-cycle",
                everything.place("Cohort", name),
                "spec.parentName",
                f"is its own ancestor: {' -> '.join([*seen, name])}; nothing is admitted through"
                " it",
                "break the cycle",
            )


def closed_to_its_namespace(everything: _All) -> Iterator[Finding]:
    """LocalQueues whose namespace can never match their ClusterQueue's selector."""
    for local in everything.documents.local_queues:
        queue = everything.queue(local.cluster_queue)
        selector = queue.namespace_selector if queue is not None else None
        if queue is None or selector is None:
            continue
        known = everything.documents.namespaces.get(local.namespace)
        labels = {NAME_LABEL: local.namespace, **(known or {})}
        if selector.matches(labels):
            continue
        severity = Severity.ERROR if known is not None else Severity.WARNING
        has = ", ".join(f"{k}={v}" for k, v in sorted((known or {}).items())) or "none"
        yield _finding(
            severity,
            "namespace-never-matches",
            everything.place("LocalQueue", local.name, local.namespace),
            "spec.clusterQueue",
            f"namespace {local.namespace} (labels: {has}) does not match the namespaceSelector of"
            f" ClusterQueue {queue.name}: nothing in this queue is ever admitted",
            f"label the namespace, or widen spec.namespaceSelector of ClusterQueue {queue.name}",
        )


def no_selector(everything: _All) -> Iterator[Finding]:
    for queue in everything.documents.cluster_queues:
        if queue.namespace_selector is None:
            yield _finding(
                Severity.WARNING,
                "no-namespace-selector",
                everything.place("ClusterQueue", queue.name),
                "spec.namespaceSelector",
                "is missing: Kueue then matches no namespace at all",
                "namespaceSelector: {} for every namespace, or"
                " engine.missing_selector_admits_all = true",
            )


def omitted_resources(everything: _All) -> Iterator[Finding]:
    """Flavors that leave out a resource their group covers."""
    for queue in everything.documents.cluster_queues:
        for group in queue.resource_groups:
            for flavor in group.flavors:
                given = {one.resource for one in flavor.resources}
                for resource in group.covered_resources:
                    if resource in given:
                        continue
                    yield _finding(
                        Severity.WARNING,
                        "omitted-resource",
                        everything.place("ClusterQueue", queue.name),
                        f"spec.resourceGroups.flavors[{flavor.flavor}].resources",
                        f"flavor {flavor.flavor} gives no quota for {resource}, which its group"
                        " covers: on this flavor it is unlimited",
                        f"add {resource} with a nominalQuota, 0 for none",
                    )


def idle_scopes(everything: _All) -> Iterator[Finding]:
    """Admission scopes without effect, because no past usage is recorded."""
    sharing = everything.documents.admission_fair_sharing
    if sharing is not None and sharing.half_life_ns:
        return
    why = "no Configuration with admissionFairSharing is among the files"
    if sharing is not None:
        why = "admissionFairSharing.usageHalfLifeTime of the Configuration is 0"
    scoped: list[tuple[str, ClusterQueue | Cohort]] = []
    scoped += [("ClusterQueue", one) for one in everything.documents.cluster_queues]
    scoped += [("Cohort", one) for one in everything.documents.cohorts]
    for kind, one in scoped:
        if one.admission_mode is AdmissionMode.BY_USAGE:
            yield _finding(
                Severity.WARNING,
                "admission-scope-without-effect",
                everything.place(kind, one.name),
                "spec.admissionScope.admissionMode",
                f"{one.admission_mode} has no effect: {why}",
                "give the Configuration admissionFairSharing with a usageHalfLifeTime (168h)",
            )


def unservable_quota(everything: _All) -> Iterator[Finding]:
    """Quotas on flavors that no given node carries, or beyond what those nodes have."""
    nodes = everything.kind("Node")
    if not nodes:
        return
    labels = {flavor.name: flavor.node_labels for flavor in everything.documents.flavors}
    for queue in everything.documents.cluster_queues:
        at = everything.place("ClusterQueue", queue.name)
        for group in queue.resource_groups:
            for flavor in group.flavors:
                wanted = labels.get(flavor.flavor, {})
                fitting = [node for node in nodes if _has_labels(node, wanted)]
                field = f"spec.resourceGroups.flavors[{flavor.flavor}]"
                if not fitting:
                    if any(quota.nominal for quota in flavor.resources):
                        shown = ", ".join(f"{k}={v}" for k, v in sorted(wanted.items()))
                        yield _finding(
                            Severity.WARNING,
                            "no-node-for-flavor",
                            at,
                            field,
                            f"no given node has the labels of flavor {flavor.flavor} ({shown}):"
                            " what is admitted on it cannot start",
                            "add these labels to a node, or remove the flavor",
                        )
                    continue
                for quota in flavor.resources:
                    capacity = _capacity(fitting, quota.resource)
                    if capacity is not None and quota.nominal > capacity:
                        yield _finding(
                            Severity.WARNING,
                            "quota-beyond-nodes",
                            at,
                            f"{field}.resources[{quota.resource}].nominalQuota",
                            f"{format_amount(quota.resource, quota.nominal)} is more than the"
                            f" {format_amount(quota.resource, capacity)} its nodes have",
                            "lower it to the nodes' capacity",
                        )


def never_admitted(everything: _All) -> Iterator[Finding]:
    """Workloads that the scheduler does not admit even when nothing else runs."""
    queues = everything.documents.cluster_queues
    if any(
        quota.auto
        for queue in queues
        for group in queue.resource_groups
        for flavor in group.flavors
        for quota in flavor.resources
    ):
        return  # An automatic quota is only known once nodes report.
    for workload in everything.documents.workloads:
        alone = replace(everything.documents, workloads=[workload], nodes={})
        player = Player(alone)
        player.run()
        report = player.report()
        why = report["pending"].get(str(workload.key))
        if why is None or "doesn't exist" in why:  # The rule `dangling` reports it.
            continue
        made = player.scheduler
        queue = made.queue_of(workload.key)
        ways = explain(made, workload, queue, "", why, player.now_ns).ways
        yield _finding(
            Severity.ERROR,
            "never-admitted",
            _place_of_workload(everything, workload.namespace, workload.name),
            "spec",
            f"is not admitted even into empty queues: {why}",
            f"it would start if {'; or if '.join(ways)}" if ways else "request less",
        )


RULES: Final[tuple[Callable[[_All], Iterator[Finding]], ...]] = (
    unreadable,
    duplicates,
    old_versions,
    dangling,
    cohort_cycles,
    closed_to_its_namespace,
    no_selector,
    omitted_resources,
    idle_scopes,
    unservable_quota,
    never_admitted,
)


def _place_of_workload(everything: _All, namespace: str, name: str) -> Source:
    """The object a workload was made from; its name is part of the workload's name, which may end
    with a number."""
    for at in everything.places.values():
        if at.kind not in WORKLOAD_KINDS or at.namespace != namespace:
            continue
        made = at.name if at.kind == "Workload" else f"{at.kind.lower()}-{at.name}"
        if name == made or (at.kind in REPLICATED and name.rpartition("-")[0] == made):
            return at
    return Source("", 0, "Workload", namespace, name)


def _has_labels(node: Source, wanted: Mapping[str, str]) -> bool:
    labels = Reader(node.body).child("metadata").labels("labels")
    return all(labels.get(name) == value for name, value in wanted.items())


def _capacity(nodes: Iterable[Source], resource: str) -> int | None:
    """Total capacity of these nodes; None if none of them reports it."""
    total: int | None = None
    for node in nodes:
        reader = Reader(node.body)
        status = reader.child("status")
        amounts = status.amounts("allocatable") or status.amounts("capacity")
        found = amounts.get(resource)
        if found is None and resource == GPU:
            # This is a label of GPU feature discovery.
            found = reader.child("metadata").child("labels").amount(GPU_COUNT, resource)
        if found is not None:
            total = (total or 0) + found
    return total

"""Kueue's Configuration file, read whole: what is honoured, what has no effect here, and what is
refused.

Each section is one of the three. One without effect is named in the log, so that nobody waits for
what it would do; a section or a field that Kueue does not have is refused, and so is what would
change decisions and is not there yet.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Final

from queuecontroller.cluster.cache.policy import EXCEPT, Policy, Retention
from queuecontroller.frameworks import external_frameworks, frameworks
from queuecontroller.kueueapi.manifests.configuration import read_configuration
from queuecontroller.kueueapi.manifests.durations import parse_duration_ns
from queuecontroller.kueueapi.manifests.kueue import read_selector
from queuecontroller.scheduler.lifecycle import PodsReadySettings
from queuecontroller.scheduler.model.settings import EngineSettings, FairPreemptionStrategy
from queuecontroller.state.book import BookSettings
from sluicecommon.reader import ManifestError, Reader, read, shown

GROUP: Final = "config.kueue.x-k8s.io"
SECOND_NS: Final = 1_000_000_000
DEFAULT_TIMEOUT: Final = "5m"
"""Of waitForPodsReady, Kueue's."""
OF_THE_BOOK: Final = ("resources", "admissionFairSharing", "preemptionProtection")
BALANCED: Final = "TASBalancedPlacement"
"""The one of Kueue's gates that counts: it is off there, too, unless somebody switches it on."""
WITHOUT_EFFECT: Final = {
    "namespace": "kubernetes.namespace says where the Lease is",
    "health": "server.probes_listen does that",
    "metrics": "server.metrics_listen does that; labels of one's own are not told",
    "webhook": "kubernetes.webhooks_listen does that",
    "leaderElection": "kubernetes.leader_lease_s does that",
    "controller": "there are no workers to count",
    "internalCertManagement": "the chart makes the certificate, or cert-manager does",
    "clientConnection": "at most 12 writes are under way; there is no limit to their rate",
    "multiKueue": "nothing is sent to other clusters",
    "tls": "the webhooks' server has TLS 1.2 and newer",
    "visibilityServer": "kubernetes.visibility_listen does that",
    "pprofBindAddress": "there is none",
    "queueVisibility": "it is gone in Kueue, too",
}


@dataclass(frozen=True, slots=True)
class Given:
    policy: Policy = field(default_factory=Policy)
    book: BookSettings = field(default_factory=BookSettings)
    document: dict[str, Any] | None = None
    """For the book: transformations, fair sharing of admission, protection from preemption."""
    counts_claims: bool = False
    """It maps classes of devices to quotas."""
    remarks: tuple[str, ...] = ()
    """Sections without effect, and why."""


def given_by(document: object, book: BookSettings) -> Given:
    """Raises ManifestError, which names every field that is wrong."""
    found = read(lambda reader: _given(reader, book), document, "Configuration")
    assert isinstance(document, dict)
    wanted = {key: document[key] for key in OF_THE_BOOK if key in document}
    if wanted:
        classes = read_configuration(wanted).device_classes
        found = replace(found, counts_claims=bool(classes))
        head = {"apiVersion": document["apiVersion"], "kind": "Configuration"}
        found = replace(found, document={**head, "metadata": {"name": "kueue"}, **wanted})
    return found


def _given(reader: Reader, book: BookSettings) -> Given:
    version = reader.required("apiVersion")
    if version.partition("/")[0] != GROUP or reader.required("kind") != "Configuration":
        reader.problem("kind", f"is no Configuration of {GROUP}", "give Kueue's file")
    reader.ignore("metadata", *OF_THE_BOOK)
    policy = Policy(
        without_queue=reader.flag("manageJobsWithoutQueueName"),
        namespaces=read_selector(reader, "managedJobsNamespaceSelector") or EXCEPT,
    )
    if reader.has("integrations"):
        policy = _integrations(reader.child("integrations"), policy)
    if reader.has("objectRetentionPolicies"):
        kept = _retention(reader.child("objectRetentionPolicies"))
        policy = replace(policy, retention=kept)
    engine = book.engine
    if reader.has("fairSharing"):
        engine = _fair_sharing(reader.child("fairSharing"), engine)
    ready = book.pods_ready
    if reader.has("waitForPodsReady"):
        ready, engine = _pods_ready(reader.child("waitForPodsReady"), ready, engine)
    remarks = []
    balanced = book.balanced_topology
    if reader.has("featureGates"):
        gates = reader.child("featureGates")
        balanced = gates.flag(BALANCED, balanced)
        remarks = [
            f"Configuration: featureGates.{name} has no effect: what is there is on"
            for name in gates.names()
            if name != BALANCED
        ]
    for name in reader.names():
        if name in WITHOUT_EFFECT:
            remarks.append(f"Configuration: {name} has no effect: {WITHOUT_EFFECT[name]}")
            reader.ignore(name)
    reader.done()
    book = replace(book, engine=engine, pods_ready=ready, balanced_topology=balanced)
    return Given(policy, book, None, remarks=tuple(remarks))


def _integrations(reader: Reader, policy: Policy) -> Policy:
    known = {one.name for one in frameworks()}
    names: frozenset[str] | None = None
    if reader.has("frameworks"):
        names = frozenset(reader.texts("frameworks"))
        for name in sorted(names - known):
            what = f"{shown(name)} is no framework that is queued here"
            reader.problem(
                "frameworks", what, f"leave it out; there are {', '.join(sorted(known))}"
            )
    external = reader.texts("externalFrameworks")
    try:
        outside = external_frameworks(external, reader.at("externalFrameworks"))
    except ManifestError as error:
        reader.problems += error.problems
        outside = ()
    labels = reader.texts("labelKeysToCopy")
    for gone in ("podOptions",):
        if reader.has(gone):
            reader.problem(gone, "is gone in Kueue", "write managedJobsNamespaceSelector")
            reader.ignore(gone)
    reader.done()
    return replace(policy, frameworks=names, external=outside, labels_to_copy=labels)


def _retention(reader: Reader) -> Retention:
    workloads = reader.child("workloads")
    found = Retention(
        after_finished_s=_kept_s(workloads, "afterFinished"),
        after_deactivated_s=_kept_s(workloads, "afterDeactivatedByKueue"),
    )
    workloads.done()
    reader.done()
    return found


def _kept_s(reader: Reader, key: str) -> int | None:
    found = _seconds(reader, key, "")
    if found is not None and found < 0:
        reader.problem(key, "is negative", "write one such as 5m or 168h")
    return found


def _fair_sharing(reader: Reader, engine: EngineSettings) -> EngineSettings:
    """In v1beta1 it has to say `enable`, in v1beta2 it is on by being there."""
    is_on = reader.flag("enable", True)
    strategies = engine.fair_strategies
    if reader.has("preemptionStrategies"):
        found = []
        for i, name in enumerate(reader.texts("preemptionStrategies")):
            try:
                found.append(FairPreemptionStrategy(name))
            except ValueError:
                what = f"{shown(name)} is no strategy"
                fix = f"write {' or '.join(FairPreemptionStrategy)}"
                reader.problem(f"preemptionStrategies[{i}]", what, fix)
        strategies = tuple(found) or strategies
    reader.done()
    return replace(engine, fair_sharing=is_on, fair_strategies=strategies)


def _pods_ready(
    reader: Reader, ready: PodsReadySettings, engine: EngineSettings
) -> tuple[PodsReadySettings, EngineSettings]:
    is_on = reader.flag("enable", True)
    timeout_s = _seconds(reader, "timeout", DEFAULT_TIMEOUT)
    recovery_s = _seconds(reader, "recoveryTimeout", "")
    block = reader.flag("blockAdmission", False)
    again = reader.child("requeuingStrategy")
    order = again.text("timestamp", "Eviction")
    if order != "Eviction":
        what = f"{shown(order)}: who is evicted goes behind those that came meanwhile"
        again.problem("timestamp", what, "leave it out, or write Eviction")
    made = PodsReadySettings(
        timeout_s=timeout_s,
        recovery_timeout_s=recovery_s,
        backoff_base_s=again.whole("backoffBaseSeconds", ready.backoff_base_s, least=0),
        backoff_max_s=again.whole("backoffMaxSeconds", ready.backoff_max_s, least=0),
        backoff_limit_count=again.optional_whole("backoffLimitCount", least=0),
    )
    again.done()
    reader.done()
    if not is_on:
        return replace(ready, timeout_s=None), engine
    return made, replace(engine, wait_for_pods_ready=block)


def _seconds(reader: Reader, key: str, default: str) -> int | None:
    """Whole ones, rounded up; None: none given."""
    text = reader.text(key, default)
    if not text:
        return None
    try:
        return -(-parse_duration_ns(text) // SECOND_NS)
    except ValueError as error:
        reader.problem(key, str(error)[:200], "write one such as 5m or 1h30m")
        return None

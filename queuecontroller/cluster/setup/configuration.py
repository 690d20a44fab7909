"""Kueue's Configuration file: each section is honoured, has no effect here, or is refused.

A section without effect is named in the log with the setting that replaces it. A section or field
that Kueue does not have is refused, and so is one that would change decisions and is not
implemented.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Final

from queuecontroller.cluster.cache.multikueue import (
    ALL_AT_ONCE,
    DISPATCHER,
    INCREMENTAL,
    MultiKueueSettings,
)
from queuecontroller.cluster.cache.policy import EXCEPT, Policy, Retention
from queuecontroller.frameworks import external_frameworks, frameworks
from queuecontroller.frameworks.names import ORIGIN
from queuecontroller.kueueapi.manifests.configuration import (
    ADMISSION_FAIR_SHARING_GATE,
    read_configuration,
)
from queuecontroller.kueueapi.manifests.kueue import read_selector
from queuecontroller.kueueapi.manifests.rules import label_problems
from queuecontroller.scheduler.lifecycle import PodsReadySettings
from queuecontroller.scheduler.model.compatibility import Feature, Line, features_of
from queuecontroller.scheduler.model.settings import (
    EngineSettings,
    FairPreemptionStrategy,
    TopologySettings,
)
from queuecontroller.state.book import BookSettings
from sluicecommon.kubernetes.durations import parse_duration_ns
from sluicecommon.reader import ManifestError, Reader, read, shown

GROUP: Final = "config.kueue.x-k8s.io"
SECOND_NS: Final = 1_000_000_000
DEFAULT_TIMEOUT: Final = "5m"
"""Kueue's default timeout of waitForPodsReady."""
OF_THE_BOOK: Final = ("resources", "admissionFairSharing", "preemptionProtection")
BALANCED: Final = "TASBalancedPlacement"
"""Feature gate of Kueue that is off by default in every line; those that differ between the lines
have an effect as well, and so has that of admission fair sharing, which is on."""
NOT_SUPPORTED: Final = frozenset(
    {
        *("ConcurrentAdmission", "ConfigurablePreemptions"),
        *("FairSharingRefill", "FairSharingReevaluatePreemptionCandidates"),
        *("PrioritizePreemptorWorkloads", "FailureRecoveryPolicy", "CustomMetricLabels"),
        "SchedulerLibraryIntegration",
        "ElasticJobsViaWorkloadSlicesForProvisioningRequests",
    }
)
"""Feature gates of Kueue, off by default there, of features that the queue lacks."""
CLAIMS_GATE: Final = "KueueDRAIntegration"
WITHOUT_EFFECT: Final = {
    "namespace": "kubernetes.namespace has the Lease",
    "health": "server.probes_listen does that",
    "metrics": "server.metrics_listen does that; custom labels are not exported",
    "webhook": "kubernetes.webhooks_listen does that",
    "leaderElection": "kubernetes.leader_lease_s does that",
    "controller": "the number of workers is fixed",
    "internalCertManagement": "the chart makes the certificate, or cert-manager does",
    "clientConnection": "at most 12 writes are in flight; their rate is not limited",
    "tls": "the webhooks' server has TLS 1.2 and newer",
    "visibilityServer": "kubernetes.visibility_listen does that",
    "pprofBindAddress": "there is no profiling endpoint",
    "queueVisibility": "Kueue has removed it, too",
}


@dataclass(frozen=True, slots=True)
class Given:
    policy: Policy = field(default_factory=Policy)
    book: BookSettings = field(default_factory=BookSettings)
    document: dict[str, Any] | None = None
    """The book's part: transformations, fair sharing of admission, preemption protection."""
    counts_claims: bool = False
    """True if it maps DeviceClasses to quotas."""
    multikueue: MultiKueueSettings = field(default_factory=MultiKueueSettings)
    remarks: tuple[str, ...] = ()
    """Messages about sections without effect."""


def without_file(book: BookSettings, line: Line) -> Given:
    """Return the settings without a Configuration."""
    features = features_of(line)
    own = Feature.OWN_TIMEOUTS in features
    ready = replace(book.pods_ready, own=own)
    topology = _topology(book.topology, features)
    gated = Feature.ORCHESTRATED_PREEMPTION in features
    engine = replace(book.engine, preemption_gates=gated)
    return Given(
        Policy(features=features),
        replace(book, engine=engine, pods_ready=ready, topology=topology),
        multikueue=MultiKueueSettings(gates_preemption=gated),
    )


def _topology(given: TopologySettings, features: frozenset[Feature]) -> TopologySettings:
    return replace(
        given,
        each_node=Feature.EACH_NODE in features,
        partial_slices=Feature.PARTIAL_SLICES in features,
        spreading=Feature.SPREADING in features,
    )


def given_by(document: object, book: BookSettings, line: Line = Line.V0_20) -> Given:
    """Read the Configuration for a line of Kueue. Raises ManifestError, which names every wrong
    field."""
    found = read(lambda reader: _given(reader, book, line), document, "Configuration")
    assert isinstance(document, dict)
    wanted = {key: document[key] for key in OF_THE_BOOK if key in document}
    if "admissionFairSharing" in wanted:
        is_on = (document.get("featureGates") or {}).get(ADMISSION_FAIR_SHARING_GATE, True)
        anchored = Feature.FAIR_FROM_RESERVATION in found.policy.features
        wanted["featureGates"] = {
            ADMISSION_FAIR_SHARING_GATE: is_on,
            str(Feature.FAIR_FROM_RESERVATION): anchored,
        }
    if wanted:
        classes = read_configuration(wanted).device_classes
        found = replace(found, counts_claims=bool(classes))
        head = {"apiVersion": document["apiVersion"], "kind": "Configuration"}
        found = replace(found, document={**head, "metadata": {"name": "kueue"}, **wanted})
    return found


def _given(reader: Reader, book: BookSettings, line: Line) -> Given:
    version = reader.required("apiVersion")
    if version.partition("/")[0] != GROUP or reader.required("kind") != "Configuration":
        reader.problem("kind", f"expected a Configuration of {GROUP}", "give Kueue's file")
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
    remarks = []
    balanced = book.topology.balanced
    features = features_of(line)
    if reader.has("featureGates"):
        gates = reader.child("featureGates")
        balanced = gates.flag(BALANCED, balanced)
        features = frozenset(one for one in Feature if gates.flag(str(one), one in features))
        anchor = Feature.FAIR_FROM_RESERVATION
        if not gates.flag(ADMISSION_FAIR_SHARING_GATE, True) and anchor in features:
            what = f"needs {ADMISSION_FAIR_SHARING_GATE}, which is off"
            gates.problem(anchor, what, "turn it off, too")
        if Feature.EXTENDED_RESOURCES in features and not gates.flag(CLAIMS_GATE, True):
            what = f"needs {CLAIMS_GATE}, which is off"
            gates.problem(Feature.EXTENDED_RESOURCES, what, "turn it off, too")
        remarks = _remarks_on(gates)
    ready = book.pods_ready
    policy = replace(policy, features=features)
    if reader.has("waitForPodsReady"):
        section = reader.child("waitForPodsReady")
        longest_s = _seconds(section, "maxTimeoutOnWorkload", "")
        if longest_s is not None:
            policy = replace(policy, longest_ready_s=longest_s)
        ready, engine = _pods_ready(section, ready, engine)
    ready = replace(ready, own=Feature.OWN_TIMEOUTS in features)
    if Feature.UNSCHEDULED not in features:
        ready = replace(ready, unscheduled_timeout_s=None)
    gated = Feature.ORCHESTRATED_PREEMPTION in features
    engine = replace(engine, preemption_gates=gated)
    multikueue = MultiKueueSettings(gates_preemption=gated)
    if reader.has("multiKueue"):
        multikueue = _multikueue(reader.child("multiKueue"), multikueue)
    for name in reader.names():
        if name in WITHOUT_EFFECT:
            remarks.append(f"Configuration: {name} has no effect: {WITHOUT_EFFECT[name]}")
            reader.ignore(name)
    reader.done()
    topology = _topology(replace(book.topology, balanced=balanced), features)
    book = replace(book, engine=engine, pods_ready=ready, topology=topology)
    return Given(policy, book, None, multikueue=multikueue, remarks=tuple(remarks))


def _multikueue(reader: Reader, given: MultiKueueSettings) -> MultiKueueSettings:
    collect_s = _seconds(reader, "gcInterval", "")
    lost_s = _seconds(reader, "workerLostTimeout", "")
    origin = reader.text("origin", given.origin)
    for key, value in (("gcInterval", collect_s), ("workerLostTimeout", lost_s)):
        if value is not None and value < 0:
            reader.problem(key, "is negative", "write a duration such as 1m or 15m")
    if not origin or list(label_problems("origin", ORIGIN, origin)):
        what = f"{shown(origin)} is not a label's value"
        reader.problem("origin", what, "write up to 63 letters, digits, - _ .")
    dispatcher = reader.text("dispatcherName", given.dispatcher)
    if dispatcher.startswith(DISPATCHER) and dispatcher not in (ALL_AT_ONCE, INCREMENTAL):
        what = f"{shown(dispatcher)} is no dispatcher"
        reader.problem("dispatcherName", what, f"write {ALL_AT_ONCE} or {INCREMENTAL}")
    for gone in ("clusterProfile", "externalFrameworks"):
        if reader.has(gone):
            reader.problem(gone, "is not supported", "remove it")
            reader.ignore(gone)
    reader.done()
    return replace(
        given,
        gc_interval_s=given.gc_interval_s if collect_s is None else collect_s,
        worker_lost_s=given.worker_lost_s if lost_s is None else lost_s,
        origin=origin,
        dispatcher=dispatcher,
    )


def _remarks_on(gates: Reader) -> list[str]:
    found = []
    for name in gates.names():
        if name in NOT_SUPPORTED:
            if gates.flag(name, False):
                found.append(f"Configuration: featureGates.{name} is not supported")
        elif name not in (BALANCED, ADMISSION_FAIR_SHARING_GATE, *Feature):
            found.append(f"Configuration: featureGates.{name} has no effect")
    return found


def _integrations(reader: Reader, policy: Policy) -> Policy:
    known = {one.name for one in frameworks()}
    names: frozenset[str] | None = None
    if reader.has("frameworks"):
        names = frozenset(reader.texts("frameworks"))
        for name in sorted(names - known):
            what = f"unsupported framework {shown(name)}"
            reader.problem(
                "frameworks", what, f"remove it; supported are {', '.join(sorted(known))}"
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
            reader.problem(gone, "was removed in Kueue", "write managedJobsNamespaceSelector")
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
        reader.problem(key, "is negative", "write a duration such as 5m or 168h")
    return found


def _fair_sharing(reader: Reader, engine: EngineSettings) -> EngineSettings:
    """Read fairSharing: v1beta1 has the field `enable`, in v1beta2 the section itself enables
    it."""
    is_on = reader.flag("enable", True)
    strategies = engine.fair_strategies
    if reader.has("preemptionStrategies"):
        found = []
        for i, name in enumerate(reader.texts("preemptionStrategies")):
            try:
                found.append(FairPreemptionStrategy(name))
            except ValueError:
                what = f"{shown(name)} is not a strategy"
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
    unscheduled_s = _seconds(reader, "unscheduledTimeout", "")
    if unscheduled_s is not None and not 0 <= unscheduled_s <= (timeout_s or 0):
        reader.problem("unscheduledTimeout", "is negative or longer than timeout", "write less")
    block = reader.flag("blockAdmission", False)
    again = reader.child("requeuingStrategy")
    order = again.text("timestamp", "Eviction")
    if order not in ("Eviction", "Creation"):
        again.problem("timestamp", f"{shown(order)} is no order", "write Eviction or Creation")
    made = PodsReadySettings(
        timeout_s=timeout_s,
        recovery_timeout_s=recovery_s,
        unscheduled_timeout_s=unscheduled_s or None,
        backoff_base_s=again.whole("backoffBaseSeconds", ready.backoff_base_s, least=0),
        backoff_max_s=again.whole("backoffMaxSeconds", ready.backoff_max_s, least=0),
        backoff_limit_count=again.optional_whole("backoffLimitCount", least=0),
    )
    again.done()
    reader.done()
    if not is_on:
        return replace(ready, timeout_s=None), engine
    by_eviction = order == "Eviction"
    return made, replace(engine, wait_for_pods_ready=block, requeued_by_eviction=by_eviction)


def _seconds(reader: Reader, key: str, default: str) -> int | None:
    """Read a duration in whole seconds, rounded up; None if there is none."""
    text = reader.text(key, default)
    if not text:
        return None
    try:
        return -(-parse_duration_ns(text) // SECOND_NS)
    except ValueError as error:
        reader.problem(key, str(error)[:200], "write a duration such as 5m or 1h30m")
        return None

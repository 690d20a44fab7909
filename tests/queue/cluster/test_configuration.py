"""Kueue's Configuration: each section honoured, named as without effect, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from queuecontroller.cluster.cache.multikueue import DISPATCHER, INCREMENTAL, MultiKueueSettings
from queuecontroller.cluster.cache.policy import Retention
from queuecontroller.cluster.setup.configuration import WITHOUT_EFFECT, given_by, without_file
from queuecontroller.frameworks import External, framework_named
from queuecontroller.kueueapi.manifests.configuration import read_configuration
from queuecontroller.scheduler.lifecycle import PodsReadySettings
from queuecontroller.scheduler.model.compatibility import Feature, Line, as_markdown
from queuecontroller.scheduler.model.settings import EngineSettings, FairPreemptionStrategy
from queuecontroller.state.book import BookSettings
from sluicecommon.reader import ManifestError


def configuration(**sections: Any) -> dict[str, Any]:
    head = {"apiVersion": "config.kueue.x-k8s.io/v1beta2", "kind": "Configuration"}
    return {**head, **sections}


def given(**sections: Any) -> Any:
    return given_by(configuration(**sections), BookSettings())


def test_an_empty_one_changes_nothing() -> None:
    found = given()
    engine = EngineSettings(preemption_gates=True)
    assert found.book == BookSettings(engine, pods_ready=PodsReadySettings(own=True))
    assert (found.document, found.remarks) == (None, ())
    assert found.policy.frameworks is None
    assert not found.policy.without_queue


def test_only_the_frameworks_that_it_names_are_queued() -> None:
    policy = given(integrations={"frameworks": ["batch/job", "deployment", "pod"]}).policy
    held = {
        name: policy.wants(framework_named(name))
        for name in ("batch/job", "pod", "deployment", "statefulset", "ray.io/rayjob")
    }
    assert held == {
        "batch/job": True,
        "pod": True,
        "deployment": True,
        "statefulset": False,
        "ray.io/rayjob": False,
    }
    assert not given(integrations={"frameworks": ["batch/job"]}).policy.has_pods


def test_outside_frameworks_and_labels_are_read() -> None:
    policy = given(
        integrations={"externalFrameworks": ["Foo.v1.example.com"], "labelKeysToCopy": ["team"]}
    ).policy
    assert policy.external == (External("example.com", "Foo"),)
    assert policy.is_external({"apiVersion": "example.com/v1", "kind": "Foo"})
    assert policy.labels_to_copy == ("team",)


def test_jobs_without_a_queue_wait_where_namespaces_are_selected() -> None:
    policy = given(manageJobsWithoutQueueName=True).policy
    name = "kubernetes.io/metadata.name"
    assert policy.without_queue
    assert policy.namespaces.matches({name: "team"})
    assert not policy.namespaces.matches({name: "kube-system"})
    narrow = given(managedJobsNamespaceSelector={"matchLabels": {"queued": "yes"}}).policy
    assert not narrow.namespaces.matches({name: "team"})
    assert narrow.namespaces.matches({"queued": "yes"})


def test_waiting_for_pods_is_kueues() -> None:
    book = given(
        waitForPodsReady={
            "timeout": "90s",
            "blockAdmission": True,
            "recoveryTimeout": "3m",
            "requeuingStrategy": {"backoffLimitCount": 3, "backoffBaseSeconds": 10},
        }
    ).book
    ready = book.pods_ready
    assert (ready.timeout_s, ready.recovery_timeout_s) == (90, 180)
    assert (ready.backoff_limit_count, ready.backoff_base_s) == (3, 10)
    assert book.engine.wait_for_pods_ready
    assert given(waitForPodsReady={}).book.pods_ready.timeout_s == 300
    off = given(waitForPodsReady={"enable": False, "timeout": "1m"}).book
    assert off.pods_ready.timeout_s is None


def test_fair_sharing_is_on_by_being_there() -> None:
    engine = given(fairSharing={"preemptionStrategies": ["LessThanInitialShare"]}).book.engine
    assert engine.fair_sharing
    assert engine.fair_strategies == (FairPreemptionStrategy.LESS_THAN_INITIAL_SHARE,)
    assert not given(fairSharing={"enable": False}).book.engine.fair_sharing


def test_what_the_book_reads_is_left_to_it() -> None:
    resources = {"excludeResourcePrefixes": ["example.com/"]}
    document = given(resources=resources).document
    assert document is not None
    assert document["resources"] == resources


@pytest.mark.parametrize("name", sorted(WITHOUT_EFFECT))
def test_a_section_without_effect_is_named(name: str) -> None:
    (remark,) = given(**{name: {"anything": 1}}).remarks
    assert remark.startswith(f"Configuration: {name} has no effect: ")


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"waitForPodReady": {}}, "waitForPodReady"),
        (
            {"integrations": {"frameworks": ["batch/jobs"]}},
            "unsupported framework 'batch/jobs'",
        ),
        ({"integrations": {"framework": []}}, "integrations.framework"),
        ({"integrations": {"externalFrameworks": ["foo"]}}, "Kind.version.group"),
        ({"integrations": {"podOptions": {}}}, "podOptions"),
        ({"waitForPodsReady": {"timeout": "soon"}}, "waitForPodsReady.timeout"),
        ({"multiKueue": {"workerLostTimeout": "-1m"}}, "multiKueue.workerLostTimeout"),
        ({"multiKueue": {"gcInterval": "soon"}}, "multiKueue.gcInterval"),
        ({"multiKueue": {"origin": "a b"}}, "multiKueue.origin"),
        ({"multiKueue": {"origin": ""}}, "multiKueue.origin"),
        ({"multiKueue": {"dispatcherName": f"{DISPATCHER}-random"}}, "multiKueue.dispatcherName"),
        ({"multiKueue": {"clusterProfile": {}}}, "multiKueue.clusterProfile"),
        ({"waitForPodsReady": {"requeuingStrategy": {"timestamp": "Admission"}}}, "timestamp"),
        ({"fairSharing": {"preemptionStrategies": ["Guess"]}}, "'Guess' is not a strategy"),
        ({"resources": {"transformations": [{}]}}, "input"),
        (
            {
                "resources": {
                    "transformations": [{"input": "nvidia.com/gpu", "outputs": {"pods": 5}}]
                }
            },
            "outputs.pods: is the number of pods",
        ),
        (
            {
                "resources": {
                    "transformations": [{"input": "nvidia.com/gpu", "outputs": {"a.io/b": "-1"}}]
                }
            },
            "outputs.a.io/b",
        ),
        ({"apiVersion": "kueue.x-k8s.io/v1beta2"}, "Configuration of config.kueue"),
    ],
)
def test_what_is_wrong_is_refused_by_name(sections: dict[str, Any], said: str) -> None:
    with pytest.raises(ManifestError) as refused:
        given_by(configuration(**sections), BookSettings())
    assert said in str(refused.value)


def test_multikueues_settings_have_kueues_defaults() -> None:
    assert given().multikueue == given(multiKueue={}).multikueue == MultiKueueSettings()
    section = {"gcInterval": "0s", "workerLostTimeout": "2m", "origin": "fleet"}
    found = given(multiKueue={**section, "dispatcherName": INCREMENTAL})
    assert found.remarks == ()
    assert found.multikueue == MultiKueueSettings(
        gc_interval_s=0, worker_lost_s=120, origin="fleet", dispatcher=INCREMENTAL
    )


@pytest.mark.parametrize("document", [None, [], "text", {}])
def test_what_is_no_configuration_is_refused(document: object) -> None:
    with pytest.raises(ManifestError):
        given_by(document, BookSettings())


def test_protection_from_preemption_goes_to_the_book_and_what_is_no_time_is_refused() -> None:
    section = {"reclaimWithinCohort": {"minAdmitDuration": "5m"}}
    found = given(preemptionProtection=section)
    assert found.document is not None
    assert found.document["preemptionProtection"] == section
    assert found.remarks == ()
    wrong = {"fairSharing": {"minAdmitDuration": "soon"}}
    with pytest.raises(ManifestError, match=r"preemptionProtection\.fairSharing\.minAdmitDuration"):
        given(preemptionProtection=wrong)
    with pytest.raises(ManifestError, match="minAdmitDuraton"):
        given(preemptionProtection={"fairSharing": {"minAdmitDuraton": "5m"}})


def test_how_long_what_is_over_is_kept() -> None:
    policies = {"workloads": {"afterFinished": "1h30m", "afterDeactivatedByKueue": "0s"}}
    assert given(objectRetentionPolicies=policies).policy.retention == Retention(5400, 0)
    assert given(objectRetentionPolicies={}).policy.retention == Retention()
    for wrong in ({"afterFinished": "soon"}, {"afterFinished": "-5m"}, {"after": "1h"}):
        with pytest.raises(ManifestError, match=next(iter(wrong))):
            given(objectRetentionPolicies={"workloads": wrong})


def test_the_features_are_those_of_the_line_unless_a_gate_says_otherwise() -> None:
    by_default = frozenset(Feature) - {Feature.DYNAMIC_QUOTA, Feature.FREE_DEVICES}
    older = given_by(configuration(), BookSettings(), Line.V0_19)
    in_both = {Feature.PARTIAL_SLICES, Feature.EXTENDED_RESOURCES}
    assert older.policy.features == in_both, "0.19 has them, too"
    assert not older.book.pods_ready.own
    newer = given_by(configuration(), BookSettings(), Line.V0_20)
    assert newer.policy.features == by_default
    assert newer.book.pods_ready.own
    assert without_file(BookSettings(), Line.V0_19).policy.features == in_both
    assert without_file(BookSettings(), Line.V0_20).policy.features == by_default
    gates = {"WorkloadPriorityClassDefaulting": False, "WorkloadLevelWaitForPodsReady": True}
    found = given_by(configuration(featureGates=gates), BookSettings(), Line.V0_20)
    assert found.policy.features == by_default - {Feature.DEFAULT_CLASS}
    assert found.remarks == ()
    found = given_by(configuration(featureGates=gates), BookSettings(), Line.V0_19)
    assert found.policy.features == {Feature.OWN_TIMEOUTS, *in_both}
    on = {"DynamicQuotaOrchestration": True, "KueueDRADeviceFeasibility": True}
    found = given_by(configuration(featureGates=on), BookSettings(), Line.V0_20)
    assert found.policy.features == frozenset(Feature)
    assert found.remarks == ()


def test_extended_resources_of_device_classes_need_claims_to_count() -> None:
    extended, claims = "KueueDRAIntegrationExtendedResource", "KueueDRAIntegration"
    assert Feature.EXTENDED_RESOURCES in given().policy.features
    off = given(featureGates={extended: False}).policy.features
    assert Feature.EXTENDED_RESOURCES not in off
    with pytest.raises(ManifestError, match=rf"featureGates\.{extended}: needs {claims}"):
        given(featureGates={claims: False})
    assert given(featureGates={claims: False, extended: False}).remarks


def test_the_timeout_of_pods_on_no_node_is_within_the_one_of_readiness() -> None:
    def unscheduled_s(text: str) -> int | None:
        found = given(waitForPodsReady={"timeout": "1m", "unscheduledTimeout": text})
        return found.book.pods_ready.unscheduled_timeout_s

    assert (unscheduled_s("10s"), unscheduled_s("1m"), unscheduled_s("0s")) == (10, 60, None)
    off = {"WaitForPodsReadyUnscheduledTimeout": False}
    section = {"timeout": "1m", "unscheduledTimeout": "10s"}
    found = given(waitForPodsReady=section, featureGates=off)
    assert found.book.pods_ready.unscheduled_timeout_s is None
    for wrong in ("61s", "-1s", "soon"):
        with pytest.raises(ManifestError, match=r"waitForPodsReady\.unscheduledTimeout"):
            unscheduled_s(wrong)


def test_those_evicted_for_lack_of_readiness_may_keep_their_place() -> None:
    def by_eviction(**strategy: str) -> bool:
        found = given(waitForPodsReady={"requeuingStrategy": strategy})
        return bool(found.book.engine.requeued_by_eviction)

    assert by_eviction()
    assert by_eviction(timestamp="Eviction")
    assert not by_eviction(timestamp="Creation")
    with pytest.raises(ManifestError, match=r"requeuingStrategy\.timestamp"):
        by_eviction(timestamp="Admission")


ANCHOR = "AdmissionFairSharingAnchorAtQuotaReservation"


@pytest.mark.parametrize(
    ("line", "gates", "from_reservation"),
    [
        (Line.V0_20, {}, True),
        (Line.V0_20, {ANCHOR: False}, False),
        (Line.V0_19, {}, False),
        (Line.V0_19, {ANCHOR: True}, True),
        (Line.V0_20, {"AdmissionFairSharing": False, ANCHOR: False}, None),
        (Line.V0_19, {"AdmissionFairSharing": False}, None),
    ],
)
def test_fair_sharing_of_admission_counts_as_its_gates_say(
    line: Line, gates: dict[str, bool], from_reservation: bool | None
) -> None:
    sections = {"admissionFairSharing": {"usageHalfLifeTime": "10m"}, "featureGates": gates}
    found = given_by(configuration(**sections), BookSettings(), line)
    sharing = read_configuration(found.document).admission_fair_sharing
    assert (sharing.from_reservation if sharing is not None else None) == from_reservation
    assert found.remarks == ()


def test_fair_sharing_of_admission_is_switched_off_together_with_its_anchor() -> None:
    with pytest.raises(ManifestError, match=f"featureGates.{ANCHOR}: needs AdmissionFairSharing"):
        given(featureGates={"AdmissionFairSharing": False})


def test_a_feature_that_is_not_there_is_named() -> None:
    found = given(featureGates={"ConcurrentAdmission": True, "FairSharingRefill": False})
    assert found.remarks == ("Configuration: featureGates.ConcurrentAdmission is not supported",)


def test_preemption_gates_count_unless_their_feature_is_off() -> None:
    gate = "MultiKueueOrchestratedPreemption"
    for found, counts in (
        (given(), True),
        (given(featureGates={gate: False}), False),
        (given_by(configuration(), BookSettings(), Line.V0_19), False),
        (without_file(BookSettings(), Line.V0_20), True),
    ):
        assert found.book.engine.preemption_gates is counts
        assert found.multikueue.gates_preemption is counts


def test_the_longest_timeout_of_a_job_is_read() -> None:
    assert given().policy.longest_ready_s == 7200
    found = given(waitForPodsReady={"timeout": "1m", "maxTimeoutOnWorkload": "1h"})
    assert (found.policy.longest_ready_s, found.book.pods_ready.timeout_s) == (3600, 60)


def test_the_documentation_has_the_table_of_what_differs() -> None:
    page = (Path(__file__).parents[3] / "docs/queue/kueue-api.md").read_text()
    assert as_markdown() in page


def test_the_gate_for_balanced_placement_counts_and_others_have_no_effect() -> None:
    found = given(featureGates={"TASBalancedPlacement": True, "PartialAdmission": False})
    assert found.book.topology.balanced
    (remark,) = found.remarks
    assert "featureGates.PartialAdmission has no effect" in remark
    assert not given(featureGates={"TASBalancedPlacement": False}).book.topology.balanced
    one_by_one = {
        "TASNodeFeasibilityForAllLevels": "each_node",
        "TASPartialSlices": "partial_slices",
        "TASTopologySpreading": "spreading",
    }
    for gate, field in one_by_one.items():
        assert getattr(given().book.topology, field)
        off = given(featureGates={gate: False}).book.topology
        assert [one for one in one_by_one.values() if not getattr(off, one)] == [field]
    with pytest.raises(ManifestError, match="TASBalancedPlacement"):
        given(featureGates={"TASBalancedPlacement": "yes"})

"""Workloads as the API server has them, put into the book: what is read again, and what is not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from queuecontroller.cluster.cache.kinds import CLUSTER_QUEUES, LIMIT_RANGES, WORKLOADS
from queuecontroller.cluster.cache.mirror import Mirror
from queuecontroller.cluster.cache.objects import ObjectCache
from queuecontroller.kueueapi.manifests.workloads import read_workload
from queuecontroller.scheduler.model.objects import Workload, WorkloadKey
from queuecontroller.state.book import Book, BookSettings
from queuecontroller.state.records import Snapshot
from sluicecommon.kubernetes.resources import RUNTIME_CLASSES

KEY = WorkloadKey("team/one")
AT = "2026-11-22T10:00:00Z"


def document(cpu: str, generation: int | None, reserved: bool = False) -> dict[str, Any]:
    container = {"name": "c", "resources": {"requests": {"cpu": cpu}}}
    sets = [{"name": "main", "count": 2, "template": {"spec": {"containers": [container]}}}]
    condition = {
        "type": "QuotaReserved",
        "status": "True" if reserved else "False",
        "reason": "r",
        "message": "m",
        "lastTransitionTime": AT,
    }
    head: dict[str, Any] = {"name": "one", "namespace": "team", "uid": "u", "creationTimestamp": AT}
    if generation is not None:
        head["generation"] = generation
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": head,
        "spec": {"queueName": "q", "podSets": sets},
        "status": {"conditions": [condition]},
    }


def mirror() -> Mirror:
    book = Book(BookSettings(), False, lambda: "0")
    book.restore(Snapshot("", 1, 0), 0)
    return Mirror(book, ObjectCache())


def heard(made: Mirror, one: Mapping[str, Any]) -> None:
    made.workload(KEY, one, 1)
    assert made.as_read(one) is made.as_read(one)
    assert made.as_read(one) == read_workload(one)


def test_a_status_that_changed_is_read_and_its_spec_is_not_again() -> None:
    made = mirror()
    heard(made, document("1", 1))
    before = made.as_read(document("1", 1)).pod_sets
    heard(made, document("1", 1, reserved=True))
    assert made.book.workloads.records[KEY].workload.pod_sets == before


def test_a_gate_that_was_removed_is_followed() -> None:
    made = mirror()
    gated = document("1", 1)
    gated["metadata"]["annotations"] = {"kueue.x-k8s.io/admission-gated-by": "a.io/x"}
    heard(made, gated)
    assert made.book.workloads.records[KEY].workload.is_gated
    assert made.book.engine.why_unqueued(KEY) == "Admission is gated by: a.io/x"
    heard(made, document("1", 1))
    assert not made.book.workloads.records[KEY].workload.is_gated


def test_a_preemption_gate_that_opens_or_closes_is_followed() -> None:
    made = mirror()
    gated = document("1", 1)
    gated["spec"]["preemptionGates"] = [{"name": "a.io/g"}]
    heard(made, gated)
    assert made.book.workloads.records[KEY].workload.preemption_gates == ("a.io/g",)
    for position, closed in (("Open", ()), ("Closed", ("a.io/g",))):
        one = {"name": "a.io/g", "position": position, "lastTransitionTime": AT}
        heard(made, {**gated, "status": {**gated["status"], "preemptionGates": [one]}})
        assert made.book.workloads.records[KEY].workload.preemption_gates == closed


LIMITS = {
    "apiVersion": "v1",
    "kind": "LimitRange",
    "metadata": {"name": "l", "namespace": "team", "uid": "l", "resourceVersion": "1"},
    "spec": {"limits": [{"type": "Container", "defaultRequest": {"cpu": "3"}, "default": {"cpu": "4", "memory": "1Gi"}}]},
}  # fmt: skip


def without_requests() -> dict[str, Any]:
    found = document("1", 1)
    del found["spec"]["podSets"][0]["template"]["spec"]["containers"][0]["resources"]
    return found


def requests_of(made: Mirror) -> dict[str, int]:
    return dict(made.book.workloads.records[KEY].workload.pod_sets[0].requests)


def test_the_defaults_of_its_namespace_count_as_soon_as_they_are_there() -> None:
    made = mirror()
    made.cache.take(WORKLOADS, {**without_requests()})
    made.workload(KEY, without_requests(), 1)
    assert requests_of(made) == {}
    made.object(LIMIT_RANGES, "team/l", LIMITS, 2)
    made.count_pods_again("team", 2)
    assert requests_of(made) == {"cpu": 3000, "memory": 1 << 30}
    made.object(LIMIT_RANGES, "team/l", None, 3)
    made.count_pods_again("team", 3)
    assert requests_of(made) == {}


def test_with_quota_it_keeps_what_was_counted() -> None:
    made = mirror()
    made.workload(KEY, without_requests(), 1)
    reserved = {**without_requests(), "status": document("1", 1, reserved=True)["status"]}
    reserved["status"]["admission"] = {"clusterQueue": "cq", "podSetAssignments": [{"name": "main", "count": 2, "flavors": {}, "resourceUsage": {}}]}  # fmt: skip
    made.workload(KEY, reserved, 2)
    made.object(LIMIT_RANGES, "team/l", LIMITS, 3)
    made.workload(KEY, reserved, 4)
    assert requests_of(made) == {}


def test_the_overhead_of_its_runtime_class_counts() -> None:
    made = mirror()
    one = document("1", 1)
    one["spec"]["podSets"][0]["template"]["spec"]["runtimeClassName"] = "kata"
    made.cache.take(WORKLOADS, one)
    made.workload(KEY, one, 1)
    assert requests_of(made) == {"cpu": 1000}
    kata = {
        "metadata": {"name": "kata", "uid": "k", "resourceVersion": "2"},
        "overhead": {"podFixed": {"cpu": "250m"}},
    }
    made.cache.take(RUNTIME_CLASSES, kata)
    made.count_pods_again("", 2)
    assert requests_of(made) == {"cpu": 1250}
    own = document("1", 2)
    own["spec"]["podSets"][0]["template"]["spec"] |= {
        "runtimeClassName": "kata",
        "overhead": {"cpu": "100m"},
    }
    made.workload(KEY, own, 3)
    assert requests_of(made) == {"cpu": 1100}, "what the template says itself"


def test_a_spec_that_changed_is_read_anew() -> None:
    made = mirror()
    heard(made, document("1", 1))
    heard(made, document("2", 2))
    assert made.book.workloads.records[KEY].workload.pod_sets[0].requests["cpu"] == 2000


def test_without_a_count_of_changes_all_is_read() -> None:
    made = mirror()
    heard(made, document("1", None))
    heard(made, document("2", None))


def test_what_cannot_be_read_any_more_is_said_and_forgotten_with_its_mending() -> None:
    made = mirror()
    heard(made, document("1", 1))
    made.workload(KEY, document("x", 2), 2)
    assert "got 'x'" in made.misread[KEY]
    made.workload(KEY, document("x", 2, reserved=True), 3)
    assert KEY in made.misread, "not read by what was right before"
    heard(made, document("3", 3))
    assert KEY not in made.misread


def named(name: str, one: dict[str, Any]) -> dict[str, Any]:
    return {**one, "metadata": {**one["metadata"], "name": name, "uid": name}}


def test_what_says_the_same_of_its_pods_is_read_once() -> None:
    made = mirror()
    first, second = named("a", document("1", 1)), named("b", document("1", 1, reserved=True))
    read = [made.read(one) for one in (first, second)]
    assert read[1].pod_sets is read[0].pod_sets
    assert read == [read_workload(one) for one in (first, second)]
    assert made.read(named("c", document("2", 1))) == read_workload(named("c", document("2", 1)))


def test_what_is_wrong_beside_the_pods_is_seen_all_the_same() -> None:
    made = mirror()
    made.read(named("a", document("1", 1)))
    wrong = named("b", document("1", 1))
    wrong["spec"]["priority"] = "high"
    made.workload(WorkloadKey("team/b"), wrong, 2)
    assert "spec.priority" in made.misread[WorkloadKey("team/b")]


def test_one_that_leads_to_a_defect_of_the_reader_is_said_and_ends_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is still there after a restart, which would end every process that follows."""

    def stumbling(one: Mapping[str, Any], *others: Any) -> Workload:
        if one["metadata"]["name"] == "odd":
            raise IndexError("of what nobody thought")
        return read_workload(one, *others)

    monkeypatch.setattr("queuecontroller.cluster.cache.mirror.read_workload", stumbling)
    made = mirror()
    odd = WorkloadKey("team/odd")
    made.workload(odd, named("odd", document("7", 1)), 1)
    heard(made, document("1", 1))
    assert "an internal error: IndexError: of what nobody thought" in made.misread[odd]
    assert odd not in made.book.workloads.records
    assert KEY in made.book.workloads.records
    assert "please report it" in caplog.text


QUEUE = {
    "apiVersion": "kueue.x-k8s.io/v1beta2",
    "kind": "ClusterQueue",
    "metadata": {"name": "cq", "uid": "q", "resourceVersion": "1"},
    "spec": {
        "namespaceSelector": {},
        "resourceGroups": [],
        "admissionChecksStrategy": {"admissionChecks": [{"name": "elsewhere"}]},
    },
}


def checked(state: str, version: str) -> dict[str, Any]:
    """A Workload with quota and one check, not admitted yet."""
    found = document("1", 1, reserved=True)
    found["metadata"]["resourceVersion"] = version
    check = {"name": "elsewhere", "state": state, "message": "", "lastTransitionTime": AT}
    admission = {"clusterQueue": "cq", "podSetAssignments": [{"name": "main", "count": 2, "flavors": {}, "resourceUsage": {}}]}  # fmt: skip
    found["status"] |= {"admission": admission, "admissionChecks": [check]}
    return found


@pytest.mark.parametrize(
    ("state", "kind", "reason"),
    [
        pytest.param("Retry", "Evicted", "AdmissionCheck", id="its check asks for a retry"),
        pytest.param("Ready", "Admitted", "Admitted", id="its check is ready"),
    ],
)
@pytest.mark.parametrize(
    "leads", [True, False], ids=["it leads on after a refused write", "it has just begun to lead"]
)
def test_a_check_that_is_answered_already_is_followed(
    state: str, kind: str, reason: str, leads: bool
) -> None:
    """A write that was refused is undone by taking the Workload over as it is stored, and so does a
    new leader: nothing else would tell, and it would keep its quota and wait for ever."""
    made = mirror()
    if leads:
        made.workload(KEY, checked("Pending", "1"), 1)
        made.cache.take(WORKLOADS, checked(state, "2"))
        made.take_over_again(KEY, 2)
    else:
        made.cache.take(CLUSTER_QUEUES, QUEUE)
        made.cache.take(WORKLOADS, checked(state, "2"))
        made.begin(2)
    found = made.book.workloads.records[KEY].workload.condition(kind)
    assert found is not None
    assert (found.status, found.reason) == (True, reason)


def test_what_was_refused_for_good_is_not_tried_again_at_once() -> None:
    made = mirror()
    made.cache.take(WORKLOADS, checked("Ready", "1"))
    made.take_over_again(KEY, 2, 3)
    assert made.book.workloads.records[KEY].workload.condition("Admitted") is None

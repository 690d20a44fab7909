"""Workloads as the API server has them, put into the book: what is read again, and what is not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from queuecontroller.cluster.cache.mirror import Mirror
from queuecontroller.cluster.cache.objects import ObjectCache
from queuecontroller.kueueapi.manifests.workloads import read_workload
from queuecontroller.scheduler.model.objects import Workload, WorkloadKey
from queuecontroller.state.book import Book, BookSettings
from queuecontroller.state.records import Snapshot

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
    assert "'x' is not a quantity" in made.misread[KEY]
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
    assert "a defect of this program: IndexError: of what nobody thought" in made.misread[odd]
    assert odd not in made.book.workloads.records
    assert KEY in made.book.workloads.records
    assert "please report it" in caplog.text

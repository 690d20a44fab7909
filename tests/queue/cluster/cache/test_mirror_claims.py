"""Workloads with claims, put into the book: counted by what is there, and anew when that has changed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from queuecontroller.cluster.cache.claims import is_unresolved
from queuecontroller.cluster.cache.kinds import WORKLOADS
from queuecontroller.cluster.cache.mirror import Mirror
from queuecontroller.cluster.cache.objects import ObjectCache
from queuecontroller.scheduler.model.compatibility import Feature
from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.state.book import Book, BookSettings
from queuecontroller.state.records import Snapshot
from sluicecommon.kubernetes.resources import DEVICE_CLASSES
from sluicecommon.kubernetes.resources import RESOURCE_CLAIM_TEMPLATES as TEMPLATES

KEY = WorkloadKey("team/one")
AT = "2026-11-22T10:00:00Z"
CARDS = "example.com/cards"
GPU = "example.com/gpu"


def configured() -> tuple[Mirror, ObjectCache]:
    book = Book(BookSettings(), False, lambda: "0")
    book.restore(Snapshot("", 1, 0), 0)
    mapping = {"name": CARDS, "deviceClassNames": ["cards"]}
    document = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "resources": {"deviceClassMappings": [mapping]},
    }
    book.apply([document], False, 0)
    world = ObjectCache()
    return Mirror(book, world), world


def template(version: int, count: int) -> dict[str, Any]:
    request = {"name": "a", "exactly": {"deviceClassName": "cards", "count": count}}
    return {
        "metadata": {"name": "t", "namespace": "team", "uid": "t", "resourceVersion": str(version)},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }


def document(version: int, admitted: bool = False) -> dict[str, Any]:
    spec = {
        "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}],
        "resourceClaims": [{"name": "a", "resourceClaimTemplateName": "t"}],
    }
    sets = [{"name": "main", "count": 1, "template": {"spec": spec}}]
    usage = {"name": "main", "count": 1, "resourceUsage": {"cpu": "1", CARDS: "2"}}
    status: dict[str, Any] = {}
    if admitted:
        condition = {"type": "QuotaReserved", "status": "True", "reason": "r", "message": "m"}
        status = {
            "admission": {"clusterQueue": "q", "podSetAssignments": [usage]},
            "conditions": [{**condition, "lastTransitionTime": AT}],
        }
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {
            "name": "one",
            "namespace": "team",
            "uid": "u",
            "creationTimestamp": AT,
            "generation": 1,
            "resourceVersion": str(version),
        },
        "spec": {"queueName": "q", "podSets": sets},
        "status": status,
    }


def device_class(version: int, resource: str) -> dict[str, Any]:
    return {
        "metadata": {"name": "cards", "uid": "c", "resourceVersion": str(version)},
        "spec": {"extendedResourceName": resource},
    }


def extended(version: int, **more: Any) -> dict[str, Any]:
    """A Workload that requests cards by an extended resource instead of a template."""
    made = document(version, **more)
    pod = made["spec"]["podSets"][0]["template"]["spec"]
    del pod["resourceClaims"]
    pod["containers"][0]["resources"]["requests"][GPU] = "2"
    return made


def heard(mirror: Mirror, world: ObjectCache, one: dict[str, Any]) -> None:
    assert world.take(WORKLOADS, one)
    mirror.workload(KEY, one, 1)


def cards(mirror: Mirror) -> int | None:
    record = mirror.book.workloads.records.get(KEY)
    return record.workload.pod_sets[0].requests.get(CARDS) if record is not None else None


def test_a_template_that_comes_and_changes_is_counted_anew() -> None:
    mirror, world = configured()
    heard(mirror, world, document(1))
    assert "ResourceClaimTemplate 't'" in mirror.misread[KEY]
    assert cards(mirror) is None
    world.take(TEMPLATES, template(2, 3))
    mirror.count_claims_again(2)
    assert KEY not in mirror.misread
    assert cards(mirror) == 3
    world.take(TEMPLATES, template(3, 5))
    mirror.count_claims_again(3)
    assert cards(mirror) == 5


def test_without_its_template_it_does_not_wait_with_what_it_counted_before() -> None:
    mirror, world = configured()
    world.take(TEMPLATES, template(1, 3))
    heard(mirror, world, document(2))
    assert cards(mirror) == 3
    world.drop(TEMPLATES, "team/t", "t")
    mirror.count_claims_again(3)
    assert cards(mirror) is None
    assert KEY in mirror.misread


def test_who_holds_quota_keeps_what_it_was_given() -> None:
    mirror, world = configured()
    world.take(TEMPLATES, template(1, 2))
    heard(mirror, world, document(2))
    heard(mirror, world, document(3, admitted=True))
    world.drop(TEMPLATES, "team/t", "t")
    mirror.count_claims_again(4)
    assert cards(mirror) == 2
    assert KEY not in mirror.misread
    # One that comes to lead knows the quota by the status, and counts anew once it is taken back.
    mirror, world = configured()
    heard(mirror, world, document(5, admitted=True))
    assert KEY not in mirror.misread
    assert cards(mirror) is None
    world.take(TEMPLATES, template(6, 4))
    heard(mirror, world, document(7))
    assert cards(mirror) == 4


def requests(mirror: Mirror) -> dict[str, int]:
    return dict(mirror.book.workloads.records[KEY].workload.pod_sets[0].requests)


def test_an_extended_resource_is_counted_anew_when_a_class_names_it_and_no_longer() -> None:
    mirror, world = configured()
    heard(mirror, world, extended(1))
    assert requests(mirror) == {"cpu": 1000, GPU: 2}
    world.take(DEVICE_CLASSES, device_class(2, GPU))
    mirror.count_claims_again(2)
    assert requests(mirror) == {"cpu": 1000, CARDS: 2}
    world.take(DEVICE_CLASSES, device_class(3, "example.com/another"))
    mirror.count_claims_again(3)
    assert requests(mirror) == {"cpu": 1000, GPU: 2}
    world.take(DEVICE_CLASSES, device_class(4, GPU))
    mirror.count_claims_again(4)
    assert requests(mirror) == {"cpu": 1000, CARDS: 2}
    world.drop(DEVICE_CLASSES, "cards", "c")
    mirror.count_claims_again(5)
    assert requests(mirror) == {"cpu": 1000, GPU: 2}


def test_a_workload_that_comes_right_after_a_class_counts_by_it() -> None:
    mirror, world = configured()
    mirror.count_claims_again(1)
    assert not mirror.claims.extended
    world.take(DEVICE_CLASSES, device_class(1, GPU))
    mirror.claims.class_changed()
    heard(mirror, world, extended(2))
    assert requests(mirror) == {"cpu": 1000, CARDS: 2}


def test_what_holds_quota_for_an_extended_resource_keeps_it_until_it_is_taken_back() -> None:
    for is_gone, after in ((True, {GPU: 2}), (False, {CARDS: 2})):
        mirror, world = configured()
        world.take(DEVICE_CLASSES, device_class(1, GPU))
        heard(mirror, world, extended(2, admitted=True))
        if is_gone:
            world.drop(DEVICE_CLASSES, "cards", "c")
        mirror.count_claims_again(3)
        admission = mirror.book.workloads.records[KEY].workload.admission
        assert admission is not None
        assert admission.pod_sets[0].usage == {"cpu": 1000, CARDS: 2}
        heard(mirror, world, extended(4))
        assert requests(mirror) == {"cpu": 1000, **after}


def test_with_its_gate_off_an_extended_resource_counts_by_its_own_name() -> None:
    mirror, world = configured()
    off = world.policy.features - {Feature.EXTENDED_RESOURCES}
    world.policy = replace(world.policy, features=off)
    world.take(DEVICE_CLASSES, device_class(1, GPU))
    heard(mirror, world, extended(2))
    mirror.count_claims_again(3)
    assert requests(mirror) == {"cpu": 1000, GPU: 2}


def test_claims_that_cannot_be_counted_are_told_from_a_workload_that_cannot_be_read() -> None:
    made = document(1)
    assert is_unresolved(made)
    made["spec"]["podSets"][0]["template"]["spec"]["containers"][0]["resources"]["requests"] = {
        "cpu": "x"
    }
    assert not is_unresolved(made)

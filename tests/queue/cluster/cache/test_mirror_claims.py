"""Workloads with claims, put into the book: counted by what is there, and anew when that has changed."""

from __future__ import annotations

from typing import Any

from queuecontroller.cluster.cache.kinds import WORKLOADS
from queuecontroller.cluster.cache.mirror import Mirror
from queuecontroller.cluster.cache.objects import ObjectCache
from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.state.book import Book, BookSettings
from queuecontroller.state.records import Snapshot
from sluicecommon.kubernetes.resources import RESOURCE_CLAIM_TEMPLATES as TEMPLATES

KEY = WorkloadKey("team/one")
AT = "2026-11-22T10:00:00Z"
CARDS = "example.com/cards"


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

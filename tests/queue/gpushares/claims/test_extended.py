"""Extended resources that DeviceClasses name: their devices count for the quota of the class, and not by the resource's
own name beside it. What is expected is Kueue's (its pkg/dra, 0.19.2 and 0.20)."""

from __future__ import annotations

from typing import Any

import pytest

from queuecontroller.gpushares.claims.counting import Known
from queuecontroller.gpushares.claims.extended import extended_classes
from queuecontroller.kueueapi.manifests.configuration import read_configuration
from queuecontroller.kueueapi.manifests.workloads import read_workload
from queuecontroller.scheduler.model.objects import PodSet
from sluicecommon.reader import ManifestError

GPU, OTHER, MAPPED = "example.com/gpu", "example.com/other", "gpus"
DRIVER = {"cel": {"expression": 'device.driver == "example.com"'}}


def device_class(name: str, resource: str, created: str = "") -> dict[str, Any]:
    head = {"name": name, **({"creationTimestamp": created} if created else {})}
    return {"metadata": head, "spec": {"extendedResourceName": resource}}


CLASSES = [
    device_class("gpu", GPU),
    device_class("other", OTHER),
    device_class("plain", "example.com/plain"),
    device_class("part", "example.com/part"),
    device_class("memory", "example.com/memory"),
]


def source(kind: str) -> dict[str, Any]:
    return {kind: {"name": "memory", "driver": "example.com", "deviceSelector": DRIVER}}


RESOURCES = {
    "deviceClassMappings": [
        {"name": MAPPED, "deviceClassNames": ["gpu", "other"]},
        {"name": "parts", "deviceClassNames": ["part"], "sources": [source("counter")]},
        {"name": "memory-of-gpus", "deviceClassNames": ["memory"], "sources": [source("capacity")]},
    ]
}


def container(requests: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": "c", "resources": {"requests": requests}, **more}


def pod_set(
    spec: dict[str, Any], classes: list[dict[str, Any]] = CLASSES, **resources: Any
) -> PodSet:
    configuration = read_configuration({"resources": {**RESOURCES, **resources}})
    known = Known(
        configuration.device_classes,
        lambda namespace, name: TEMPLATE,
        lambda name: None,
        lambda driver: (),
        extended=extended_classes(classes),
    )
    document = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {"name": "w", "namespace": "ns"},
        "spec": {"podSets": [{"name": "main", "count": 2, "template": {"spec": spec}}]},
    }
    change = configuration.transformations
    return read_workload(document, "Workload/ns/w", change, known).pod_sets[0]


def count(*containers: dict[str, Any], init: tuple[dict[str, Any], ...] = (), **more: Any) -> Any:
    """Requests of one pod for its quota."""
    made = pod_set({"containers": list(containers), "initContainers": list(init)}, **more)
    return dict(made.requests)


_REQUEST = {"name": "a", "exactly": {"deviceClassName": "gpu", "count": 3}}
TEMPLATE = {"spec": {"spec": {"devices": {"requests": [_REQUEST]}}}}


def test_it_counts_for_the_quota_of_its_class_alone() -> None:
    made = pod_set({"containers": [container({"cpu": "1", GPU: 2})]})
    assert dict(made.requests) == {"cpu": 1000, MAPPED: 2}
    assert dict(made.pod_requests) == {"cpu": 1000}, "no node has it beside its devices"


def test_without_a_mapping_it_counts_by_its_own_name() -> None:
    assert count(container({"example.com/plain": 2})) == {"example.com/plain": 2}
    assert count(container({"example.com/of-a-plugin": 2})) == {"example.com/of-a-plugin": 2}
    implicit = "deviceclass.resource.kubernetes.io/gpu"
    assert count(container({implicit: 1})) == {implicit: 1}, "as in Kueue"


def test_a_limit_is_a_request_and_nothing_is_nothing() -> None:
    assert count({"name": "c", "resources": {"limits": {GPU: 1}}}) == {MAPPED: 1}
    assert count(container({GPU: 0})) == {GPU: 0}


def test_containers_are_added_and_the_largest_before_them_counts() -> None:
    one, two, five = (container({GPU: number}) for number in (1, 2, 5))
    assert count(one, two) == {MAPPED: 3}
    assert count(one, two, init=(five,)) == {MAPPED: 5}
    beside = {**two, "restartPolicy": "Always"}
    assert count(one, two, init=(beside,)) == {MAPPED: 5}, "it runs beside the others"


def test_each_name_is_added_up_before_they_count_for_one_quota() -> None:
    assert count(container({GPU: 1}), init=(container({OTHER: 1}),)) == {MAPPED: 2}
    assert count(container({GPU: 1}), container({OTHER: 2})) == {MAPPED: 3}


def test_claims_from_templates_count_beside_it() -> None:
    claims = [{"name": "a", "resourceClaimTemplateName": "t"}]
    made = pod_set({"containers": [container({GPU: 1})], "resourceClaims": claims})
    assert dict(made.requests) == {MAPPED: 4}


def test_without_any_mapping_claims_count_nothing_beside_it() -> None:
    claims = [{"name": "a", "resourceClaimTemplateName": "t"}]
    spec = {"containers": [container({GPU: 1})], "resourceClaims": claims}
    assert dict(pod_set(spec, deviceClassMappings=[]).requests) == {GPU: 1}


def test_what_does_not_come_from_containers_keeps_its_name() -> None:
    overhead = pod_set({"containers": [container({GPU: 1})], "overhead": {GPU: "1"}})
    assert dict(overhead.requests) == {MAPPED: 1, GPU: 1}
    rule = {"input": OTHER, "strategy": "Replace", "outputs": {GPU: 4}}
    asked = container({GPU: 1, OTHER: 1})
    assert count(asked, transformations=[rule]) == {MAPPED: 2, GPU: 4}
    rule = {"input": GPU, "strategy": "Replace", "outputs": {"units": 4}}
    assert count(asked, transformations=[rule]) == {MAPPED: 2, "units": 4}


def test_an_excluded_prefix_does_not_exclude_devices() -> None:
    asked = container({GPU: 1, "example.com/of-a-plugin": 1})
    assert count(asked, excludeResourcePrefixes=["example.com/"]) == {MAPPED: 1}


@pytest.mark.parametrize(
    ("requests", "field", "words"),
    [
        ({GPU: "500m"}, f"containers[0].resources.requests.{GPU}", "'500m' is not a number of"),
        ({"example.com/part": 1}, "requests.example.com/part", "'part' count by a counter"),
        ({"example.com/memory": 1}, "requests.example.com/memory", "'memory' count by a capacity"),
    ],
)
def test_what_cannot_be_counted_is_refused(
    requests: dict[str, Any], field: str, words: str
) -> None:
    with pytest.raises(ManifestError) as refused:
        count(container(requests))
    (problem,) = refused.value.problems
    assert field in problem.field
    assert words in problem.message


def test_a_part_is_refused_in_each_container_that_requests_one() -> None:
    with pytest.raises(ManifestError) as refused:
        count(container({GPU: "500m"}), container({GPU: "500m"}), container({GPU: 1}))
    assert len(refused.value.problems) == 2
    plugins = "example.com/of-a-plugin"
    assert count(container({plugins: "500m"})) == {plugins: 1}


@pytest.mark.parametrize(
    ("first", "second", "taken"),
    [
        (("a", "2026-11-22T10:00:00Z"), ("b", "2026-11-22T10:00:01Z"), "b"),
        (("b", "2026-11-22T10:00:01Z"), ("a", "2026-11-22T10:00:00Z"), "b"),
        (("b", "2026-11-22T10:00:00Z"), ("a", "2026-11-22T10:00:00Z"), "a"),
    ],
    ids=["the newest", "in any order", "the first by name of equally old ones"],
)
def test_of_several_classes_the_one_that_the_scheduler_takes_counts(
    first: tuple[str, str], second: tuple[str, str], taken: str
) -> None:
    classes = [device_class(name, GPU, created) for name, created in (first, second)]
    mapping = [{"name": name, "deviceClassNames": [name]} for name in ("a", "b")]
    asked = container({GPU: 1})
    assert count(asked, classes=classes, deviceClassMappings=mapping) == {taken: 1}


def test_a_class_of_a_native_resource_is_left_alone() -> None:
    assert extended_classes([device_class("a", "kubernetes.io/x"), device_class("b", "cpu")]) == {}
    assert extended_classes([{"metadata": {"name": "c"}, "spec": {}}]) == {}

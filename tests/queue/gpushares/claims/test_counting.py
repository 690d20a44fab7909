"""Quota that pods with claims count for, by Kueue's `deviceClassMappings`."""

from __future__ import annotations

from typing import Any

import pytest

from queuecontroller.gpushares.claims.counting import Known
from queuecontroller.gpushares.claims.published import published
from queuecontroller.kueueapi.manifests.configuration import read_configuration
from queuecontroller.kueueapi.manifests.workloads import read_workload
from sluicecommon.reader import ManifestError

GIB = 2**30
OURS = {"cel": {"expression": 'device.driver == "sluice.dev"'}}
CLASS = {
    "metadata": {"name": "gpu.sluice.dev"},
    "spec": {
        "selectors": [{"cel": {"expression": 'device.attributes["sluice.dev"].type == "gpu"'}}]
    },
}


def source(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {kind: {"name": name, "driver": "sluice.dev", "deviceSelector": OURS, **more}}


MAPPINGS: list[dict[str, Any]] = [
    {
        "name": "sluice.dev/gpu-memory",
        "deviceClassNames": ["gpu.sluice.dev"],
        "sources": [source("capacity", "memory")],
    },
    {
        "name": "sluice.dev/mig-slices",
        "deviceClassNames": ["mig.sluice.dev"],
        "sources": [source("counter", "slices")],
    },
    {"name": "example.com/devices", "deviceClassNames": ["plain.example.com", "more.example.com"]},
]


def card(name: str, memory: str, kind: str = "gpu", slices: int = 0) -> dict[str, Any]:
    policy = {"default": "1Gi", "validRange": {"min": "1Mi", "step": "1Mi", "max": memory}}
    made: dict[str, Any] = {
        "name": name,
        "attributes": {"type": {"string": kind}},
        "allowMultipleAllocations": True,
        "capacity": {"memory": {"value": memory, "requestPolicy": policy}},
    }
    if slices:
        counters = {"slices": {"value": str(slices)}}
        made["consumesCounters"] = [{"counterSet": "card", "counters": counters}]
    return made


def slice_of(*devices: dict[str, Any], generation: int = 1, count: int = 1) -> dict[str, Any]:
    pool = {"name": "node", "generation": generation, "resourceSliceCount": count}
    return {"spec": {"driver": "sluice.dev", "pool": pool, "devices": list(devices)}}


SLICES = [
    slice_of(
        card("gpu-0", "80Gi"),
        card("gpu-1", "40Gi"),
        card("mig-0", "10Gi", "mig", 1),
        card("mig-1", "40Gi", "mig", 3),
    )
]


def template(**exactly: Any) -> dict[str, Any]:
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.sluice.dev", **exactly}}
    return {"spec": {"spec": {"devices": {"requests": [request]}}}}


def alternatives(*given: dict[str, Any]) -> dict[str, Any]:
    made = [
        {"name": f"a{at}", "deviceClassName": "gpu.sluice.dev", **one}
        for at, one in enumerate(given)
    ]
    request = {"name": "gpu", "firstAvailable": made}
    return {"spec": {"spec": {"devices": {"requests": [request]}}}}


def count(
    *templates: dict[str, Any] | None,
    slices: list[dict[str, Any]] | None = None,
    pods: int = 1,
    mappings: list[dict[str, Any]] | None = None,
    by_name: str = "",
) -> dict[str, int]:
    """Quota that one pod counts for, with a claim of each template, or one that it names."""
    configuration = read_configuration(
        {"resources": {"deviceClassMappings": MAPPINGS if mappings is None else mappings}}
    )
    there = {f"t{at}": one for at, one in enumerate(templates) if one is not None}
    known = Known(
        configuration.device_classes,
        lambda namespace, name: there.get(name) if namespace == "ns" else None,
        lambda name: {**CLASS, "spec": {}} if name != "gpu.sluice.dev" else CLASS,
        lambda driver: published(SLICES if slices is None else slices, driver),
    )
    claims = [
        {"name": f"c{at}", "resourceClaimTemplateName": f"t{at}"} for at in range(len(templates))
    ]
    if by_name:
        claims.append({"name": "named", "resourceClaimName": by_name})
    spec = {
        "containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}],
        "resourceClaims": claims,
    }
    workload = read_workload(
        {
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "kind": "Workload",
            "metadata": {"name": "w", "namespace": "ns"},
            "spec": {
                "queueName": "q",
                "podSets": [{"name": "main", "count": pods, "template": {"spec": spec}}],
            },
        },
        "Workload/ns/w",
        claims=known,
    )
    found = dict(workload.pod_sets[0].requests)
    assert found.pop("cpu") == 1000
    return found


def test_a_claim_that_no_template_made_is_refused() -> None:
    """Its devices would be held outside of any quota, and Kueue refuses it."""
    with pytest.raises(ManifestError, match=r"resourceClaims\[0\]\.resourceClaimName: a ResourceC"):
        count(by_name="mine")
    assert count(by_name="mine", mappings=[]) == {}, "no claims count"


def test_a_class_without_sources_counts_devices() -> None:
    asked = template(deviceClassName="plain.example.com", count=3)
    more = template(deviceClassName="more.example.com")
    assert count(asked, more) == {"example.com/devices": 4}


@pytest.mark.parametrize(
    ("exactly", "expected"),
    [
        ({"capacity": {"requests": {"memory": "24Gi"}}}, 24 * GIB),
        ({"capacity": {"requests": {"sluice.dev/memory": "24Gi"}}}, 24 * GIB),
        ({"capacity": {"requests": {"memory": "1500Ki"}}}, 2 << 20),
        ({"capacity": {"requests": {"memory": "60Gi"}}, "count": 1}, 60 * GIB),
        ({"capacity": {"requests": {"memory": "1Gi"}}, "count": 2}, 2 * GIB),
        ({}, GIB),
    ],
    ids=["as asked", "by its full name", "rounded up", "one that fits is enough", "of each", "default"],
)  # fmt: skip
def test_a_capacity_counts_what_the_scheduler_would_take(
    exactly: dict[str, Any], expected: int
) -> None:
    assert count(template(**exactly)) == {"sluice.dev/gpu-memory": expected}


def test_without_a_policy_all_of_the_largest_device_counts() -> None:
    bare = [card(name, size) for name, size in (("a", "80Gi"), ("b", "40Gi"))]
    for one in bare:
        del one["capacity"]["memory"]["requestPolicy"]
    assert count(template(), slices=[slice_of(*bare)]) == {"sluice.dev/gpu-memory": 80 * GIB}


def test_a_counter_counts_the_most_that_a_device_that_is_meant_consumes() -> None:
    every = template(deviceClassName="mig.sluice.dev")
    assert count(every) == {"sluice.dev/mig-slices": 3}
    small = (
        'device.capacity["sluice.dev"].memory.isLessThan(quantity("20Gi"))'
        ' && device.attributes["sluice.dev"].type == "mig"'
    )
    selectors = [{"cel": {"expression": small}}]
    one = template(deviceClassName="mig.sluice.dev", selectors=selectors)
    assert count(one) == {"sluice.dev/mig-slices": 1}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (None, "ResourceClaimTemplate 't0' is not in namespace ns"),
        (template(deviceClassName="other"), "DeviceClass 'other' is in no mapping"),
        (template(allocationMode="All"), "'All' has no number"),
        (template(count=7), "2 published devices match, 7 are requested"),
        (template(count=0), "must be from 1 to"),
        (template(count=2**31), "must be from 1 to"),
        (template(count=2**63 - 1, capacity={"requests": {"memory": "1Ti"}}), "must be from 1 to"),
        (
            template(capacity={"requests": {"memory": "90Gi"}}),
            "no matching device has enough capacity",
        ),
        (
            template(selectors=[{"cel": {"expression": "device.attributes['sluice.dev'].x == 1"}}]),
            "the selectors cannot be evaluated: no such key: x",
        ),
        (alternatives({"deviceClassName": ""}), "deviceClassName"),
        (alternatives({"deviceClassName": "plain.example.com"}, {"deviceClassName": "other"}), "in no mapping"),
        (alternatives({"count": 7}, {"count": 5}), "2 published devices match, 5 are requested"),
        ({"spec": "much"}, "expected fields"),
    ],
)  # fmt: skip
def test_what_cannot_be_counted_is_said_with_its_field(
    given: dict[str, Any] | None, said: str
) -> None:
    with pytest.raises(ManifestError) as raised:
        count(given)
    assert said in str(raised.value)
    assert "resourceClaims[0]" in str(raised.value)


def test_access_for_administration_counts_nothing() -> None:
    admin = template(deviceClassName="plain.example.com", adminAccess=True)
    assert count(admin) == {}
    assert count(admin, template(count=2)) == {"sluice.dev/gpu-memory": 2 * GIB}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            [{"deviceClassName": "plain.example.com"}, {"deviceClassName": "more.example.com"}],
            {"example.com/devices": 1},
        ),
        (
            [{"deviceClassName": "plain.example.com", "count": 1}, {"deviceClassName": "plain.example.com", "count": 4}],
            {"example.com/devices": 4},
        ),
        ([{}, {"deviceClassName": "plain.example.com"}], {"sluice.dev/gpu-memory": GIB, "example.com/devices": 1}),
        ([{"count": 7}, {"deviceClassName": "plain.example.com"}], {"example.com/devices": 1}),
    ],
    ids=["of one quota", "the most of any", "of two quotas", "one that no device fits is left out"],
)  # fmt: skip
def test_of_several_alternatives_each_quota_is_charged_once(
    given: list[dict[str, Any]], expected: dict[str, int]
) -> None:
    assert count(alternatives(*given)) == expected


def test_a_class_counts_for_two_quotas() -> None:
    other = {**MAPPINGS[0], "name": "example.com/memory"}
    asked = template(capacity={"requests": {"memory": "1Gi"}})
    expected = {"sluice.dev/gpu-memory": GIB, "example.com/memory": GIB}
    assert count(asked, mappings=[*MAPPINGS, other]) == expected


def test_a_pool_that_is_not_complete_is_not_there_yet() -> None:
    half = [slice_of(card("gpu-0", "80Gi"), count=2)]
    with pytest.raises(ManifestError, match="0 published devices"):
        count(template(), slices=half)
    newer = [*SLICES, slice_of(card("gpu-0", "20Gi"), generation=2)]
    asked = template(capacity={"requests": {"memory": "30Gi"}})
    with pytest.raises(ManifestError, match="has enough capacity"):
        count(asked, slices=newer)


def test_where_no_class_is_mapped_claims_count_for_nothing() -> None:
    configuration = read_configuration({"resources": {}})
    assert not configuration.device_classes


@pytest.mark.parametrize(
    ("mapping", "said"),
    [
        ({"name": "cpu", "deviceClassNames": ["a"]}, "expected the name of a quota"),
        ({"name": "Upper/x", "deviceClassNames": ["a"]}, "expected the name of a quota"),
        ({"name": "a"}, "deviceClassNames: is required"),
        ({"name": "a", "deviceClassNames": ["gpu.sluice.dev"]}, "is in the mapping sluice.dev"),
        ({"name": "a", "deviceClassNames": ["b"], "sources": [{}]}, "one of counter and capacity"),
        (
            {"name": "a", "deviceClassNames": ["b"], "sources": [source("counter", "a"), source("capacity", "b")]},
            "are counted in one number",
        ),
        (
            {"name": "a", "deviceClassNames": ["b"], "sources": [source("capacity", "m", deviceSelector={"cel": {"expression": "a ="}})]},
            "deviceSelector.cel.expression",
        ),
        ({"name": "a", "deviceClassNames": ["b"], "source": []}, "unknown"),
    ],
)  # fmt: skip
def test_a_mapping_that_means_nothing_stops_the_start(mapping: dict[str, Any], said: str) -> None:
    with pytest.raises(ManifestError) as raised:
        count(mappings=[*MAPPINGS, mapping])
    assert said in str(raised.value)


def on_nodes(*nodes: str, **more: Any) -> list[dict[str, Any]]:
    """A card on each of the nodes, as a driver publishes them."""
    made = []
    for at, node in enumerate(nodes):
        one = slice_of({**card(f"gpu-{at}", "40Gi"), **more})
        one["spec"] |= {"nodeName": node, "pool": {"name": f"{node}-{at}"}}
        made.append(one)
    return made


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        (("a", "a"), ""),
        (("a", "b", "b"), ""),
        (("a", ""), ""),
        (("a", "b"), "1 published devices on one node match, 2 are requested"),
    ],
    ids=["on one node", "on the larger node", "one from any node", "on two nodes"],
)
def test_a_claim_gets_the_devices_of_one_node(nodes: tuple[str, ...], said: str) -> None:
    """Otherwise quota is reserved for pods that kube-scheduler can never place."""
    slices = on_nodes(*nodes)
    if said:
        with pytest.raises(ManifestError, match=said):
            count(template(count=2), slices=slices)
    else:
        assert count(template(count=2), slices=slices) == {"sluice.dev/gpu-memory": 2 * GIB}


def tolerating(**toleration: str) -> dict[str, Any]:
    return template(tolerations=[toleration])


@pytest.mark.parametrize(
    ("effect", "request_", "is_counted"),
    [
        ("NoSchedule", template(), False),
        ("NoExecute", template(), False),
        ("None", template(), True),
        ("NoSchedule", tolerating(key="broken", operator="Exists"), True),
        ("NoSchedule", tolerating(operator="Exists"), True),
        ("NoSchedule", tolerating(key="broken", value="fan"), True),
        ("NoSchedule", tolerating(key="broken", value="other"), False),
        ("NoExecute", tolerating(key="broken", operator="Exists", effect="NoSchedule"), False),
    ],
)
def test_a_device_with_a_taint_is_for_claims_that_tolerate_it(
    effect: str, request_: dict[str, Any], is_counted: bool
) -> None:
    taint = {"key": "broken", "value": "fan", "effect": effect}
    slices = on_nodes("a", taints=[taint])
    if is_counted:
        assert count(request_, slices=slices) == {"sluice.dev/gpu-memory": GIB}
    else:
        with pytest.raises(ManifestError, match="0 published devices match, 1 are requested"):
            count(request_, slices=slices)

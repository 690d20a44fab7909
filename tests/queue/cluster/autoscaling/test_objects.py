"""Objects that request nodes: what autoscalers read of them, and which are created and deleted."""

from __future__ import annotations

from typing import Any

from queuecontroller.cluster.autoscaling import objects
from queuecontroller.cluster.autoscaling.objects import NEW_NODE, Change, Owner, compare
from tests.queue.cluster.autoscaling.documents import node, one

OWNER = Owner("sluice-queue", "lease-uid", "sluice")
LEASE = {
    "apiVersion": "coordination.k8s.io/v1",
    "kind": "Lease",
    "name": "sluice-queue",
    "uid": "lease-uid",
}


def stored(name: str, template: str = "large", at: str = "", **status: Any) -> dict[str, Any]:
    head = {"name": name, "uid": f"u-{name}", "labels": {NEW_NODE: template}}
    return {"metadata": {**head, "creationTimestamp": at}, "status": status}


def condition(kind: str) -> dict[str, Any]:
    return {"conditions": [{"type": kind, "status": "True"}]}


def names(change: Change) -> tuple[list[str], list[str]]:
    return (
        [name for _, name in change.create],
        [str(each["metadata"]["name"]) for each in change.delete],
    )


def test_a_placeholder_requests_a_whole_node_and_is_served_by_no_scheduler() -> None:
    pod = objects.placeholder(one(node()), "p-0", OWNER)
    assert pod["metadata"]["ownerReferences"] == [LEASE]
    assert pod["metadata"]["labels"][NEW_NODE] == "large"
    spec = pod["spec"]
    assert spec["schedulerName"] == objects.SCHEDULER
    assert spec["nodeSelector"] == {"pool": "h100"}
    assert spec["tolerations"] == [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}]
    [container] = spec["containers"]
    assert container["resources"]["requests"] == {"nvidia.com/gpu": "8"}
    assert objects.needs_condition(pod)
    assert not objects.needs_condition({**pod, "status": {"conditions": [objects.UNSCHEDULABLE]}})


def test_a_provisioning_request_names_its_template() -> None:
    pods, request = objects.provisioning_request(one(node()), "p-0", OWNER, "class")
    assert request["spec"]["podSets"] == [{"podTemplateRef": {"name": "p-0"}, "count": 1}]
    assert request["spec"]["provisioningClassName"] == "class"
    assert pods["metadata"]["name"] == "p-0"
    assert pods["template"]["spec"]["containers"][0]["resources"]["requests"] == {
        "nvidia.com/gpu": "8"
    }


def test_what_is_missing_is_created_and_a_few_at_a_time() -> None:
    change = compare({"large": 3}, [stored("sluice-new-node-large-1")], 10, {})
    assert names(change) == (["sluice-new-node-large-0", "sluice-new-node-large-2"], [])
    assert len(compare({"large": 30}, [], 10, {}).create) == 10


def test_what_is_not_needed_is_deleted_first_those_whose_node_has_come() -> None:
    there = [
        stored("a", at="2026-01-01T00:00:00Z"),
        stored("b", at="2026-01-02T00:00:00Z"),
        stored("c", at="2026-01-01T00:00:00Z", **condition("Provisioned")),
    ]
    assert names(compare({"large": 2}, there, 10, {})) == ([], ["c"])
    assert names(compare({"large": 1}, there, 10, {})) == ([], ["c", "b"])
    assert names(compare({}, there, 10, {})) == ([], ["c", "b", "a"])
    assert names(compare({}, [stored("x", template="gone")], 10, {})) == ([], ["x"])


def test_a_failed_one_is_replaced_under_another_name() -> None:
    failed = stored("sluice-new-node-large-0", **condition("Failed"))
    assert objects.is_finished(failed)
    assert names(compare({"large": 1}, [failed], 10, {})) == ([], [])
    change = compare({"large": 1}, [failed], 10, {"u-sluice-new-node-large-0": True})
    assert names(change) == (["sluice-new-node-large-1"], ["sluice-new-node-large-0"])


def test_one_that_is_being_deleted_counts_for_its_name_only() -> None:
    leaving = stored("sluice-new-node-large-0")
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert names(compare({"large": 1}, [leaving], 10, {})) == (["sluice-new-node-large-1"], [])
    assert names(compare({}, [leaving], 10, {})) == ([], [])

"""Documents that are sent to a worker, and what is taken from its answers."""

from __future__ import annotations

from typing import Any

import pytest

from queuecontroller.cluster.cache.job_context import DISPATCHED, JOBS, KINDS
from queuecontroller.cluster.multikueue import copies
from queuecontroller.frameworks import PodSetInfo, start_patch
from queuecontroller.frameworks.patches import ABSENT, at, merged
from tests.queue.cluster.multikueue.documents import AT, condition, copy, job, job_there, workload
from tests.queue.frameworks.samples import SAMPLES, sample


def test_a_copy_has_the_origin_and_nothing_of_this_cluster() -> None:
    made = copies.workload_copy(workload(), "fleet", gated=False)
    assert made["metadata"] == {
        "name": "w",
        "namespace": "n",
        "labels": {"team": "a", "kueue.x-k8s.io/multikueue-origin": "fleet"},
    }
    assert set(made["spec"]) == {"podSets", "queueName"}
    assert "status" not in made
    assert copies.is_in_step(workload(), made)


def test_a_copy_that_may_not_preempt_has_its_manager_s_gate_and_stays_in_step() -> None:
    made = copies.workload_copy(workload(), "fleet", gated=True)
    assert made["spec"]["preemptionGates"] == [{"name": "kueue.x-k8s.io/multikueue"}]
    assert copies.is_in_step(workload(), made)


def test_opening_a_gate_leaves_the_others_as_they_are() -> None:
    found = copy()
    other = {"name": "a.io/gate", "position": "Open", "lastTransitionTime": AT}
    found["status"]["preemptionGates"] = [other]
    assert copies.gate_opened_at(found) == ""
    found["status"] |= copies.open_gate_patch(found, "2026-11-28T10:00:09Z")["status"]
    assert copies.gate_opened_at(found) == "2026-11-28T10:00:09Z"
    found["status"] |= copies.open_gate_patch(found, "2026-11-28T10:00:10Z")["status"]
    assert [one["name"] for one in found["status"]["preemptionGates"]] == [
        "a.io/gate",
        "kueue.x-k8s.io/multikueue",
    ]
    assert found["status"]["preemptionGates"][0] == other


def test_a_job_that_was_started_here_is_sent_as_it_was_before() -> None:
    patch = start_patch(KINDS[JOBS], job(), [PodSetInfo("main", 1, node_selector={"pool": "here"})])
    started = merged(job(), patch)
    assert started["spec"]["template"]["spec"]["nodeSelector"] == {"pool": "here"}
    made = copies.job_copy(JOBS, started, "w", "fleet")
    assert made["spec"]["suspend"] is True
    assert "managedBy" not in made["spec"]
    assert "selector" not in made["spec"]
    assert made["spec"]["template"]["metadata"]["labels"] == {"a": "b"}
    assert "nodeSelector" not in made["spec"]["template"]["spec"]
    assert made["metadata"]["labels"] == {
        "kueue.x-k8s.io/prebuilt-workload-name": "w",
        "kueue.x-k8s.io/multikueue-origin": "fleet",
    }
    assert not set(made["metadata"].get("annotations", {})) & {"sluice.dev/before-start"}
    assert not {"uid", "resourceVersion", "ownerReferences"} & set(made["metadata"])


@pytest.mark.parametrize("kind", sorted(DISPATCHED), ids=lambda kind: kind.kind)
def test_each_kind_is_sent_suspended_and_without_managed_by(kind: Any) -> None:
    framework = KINDS[kind]
    assert framework.name in SAMPLES
    document = sample(framework.name)
    document["metadata"]["namespace"] = "n"
    made = copies.job_copy(kind, document, "w", "fleet")
    assert at(made, framework.suspend) is True
    assert at(made, framework.managed_by) is ABSENT
    assert made["kind"] == kind.kind


def test_a_copy_without_empty_values_has_the_same_pods() -> None:
    """Kueue's controller drops them when it writes the copy: its jobs were deleted and sent again for ever."""
    mine, there = workload(), copy()
    (pods,) = mine["spec"]["podSets"]
    template = {"metadata": {"labels": {}}, "spec": {"hostNetwork": False, "volumes": []}}
    pods["template"] = template
    there["spec"]["podSets"] = [{**pods, "template": {"spec": {"dnsPolicy": "ClusterFirst"}}}]
    assert copies.is_in_step(mine, there)
    template["metadata"] = {"labels": {"a": "b"}}
    assert not copies.is_in_step(mine, there)


def test_priority_follows() -> None:
    mine = workload()
    mine["spec"] |= {"priority": 7}
    assert copies.is_in_step(mine, copy())
    assert copies.priority_patch(mine, copy()) == {"spec": {"priority": 7}}
    assert copies.priority_patch(workload(), copy()) == {}


def test_the_status_comes_back_whole_and_counters_never_decrease() -> None:
    mine = {**job(), "status": {"active": 1, "succeeded": 3, "ready": 1}}
    patch = copies.status_patch(JOBS, mine, job_there(active=2, succeeded=1))
    assert patch == {"status": {"active": 2, "ready": None}}
    done = job_there(succeeded=2, completionTime="2026-11-28T10:00:00Z")
    assert copies.status_patch(JOBS, mine, done)["status"]["succeeded"] == 2
    same = job_there(**mine["status"])
    assert copies.status_patch(JOBS, mine, same) == {}


def test_a_stopped_job_has_no_pods() -> None:
    mine = {**job(), "status": {"active": 1, "ready": 0, "failed": 1}}
    assert copies.stopped_patch(JOBS, mine) == {"status": {"active": None}}


def nested(depth: int) -> Any:
    value: Any = {}
    for _ in range(depth):
        value = {"a": value}
    return value


HEAD = {"name": "w", "namespace": "n", "uid": "u", "resourceVersion": "1"}


@pytest.mark.parametrize(
    "document",
    [
        pytest.param({"metadata": HEAD, "spec": {"podSets": nested(500)}}, id="nested too deep"),
        pytest.param({"metadata": HEAD, "spec": {"podSets": [0] * 300_000}}, id="too many values"),
        pytest.param({"metadata": HEAD, "spec": []}, id="a list as spec"),
        pytest.param({"metadata": HEAD, "spec": {}, "status": {"conditions": {"a": 1}}}, id="conditions as an object"),
        pytest.param({"metadata": HEAD, "spec": {}, "status": {"conditions": ["x"]}}, id="a text as condition"),
        pytest.param({"metadata": HEAD, "spec": {}, "status": {"conditions": [{"type": 1}]}}, id="a number as type"),
        pytest.param({"metadata": HEAD, "spec": {}, "status": {"conditions": [{}] * 100}}, id="too many conditions"),
        pytest.param({"metadata": HEAD, "spec": {}, "status": {"preemptionGates": [{"name": "g"}]}}, id="a gate without position"),
        pytest.param({"metadata": HEAD, "spec": {}, "status": {"preemptionGates": [{}] * 100}}, id="too many gates"),
        pytest.param({"metadata": {**HEAD, "uid": 3}, "spec": {}}, id="a number as UID"),
        pytest.param({"metadata": {"name": "w"}, "spec": {}}, id="no namespace"),
        pytest.param({"metadata": {**HEAD, "labels": ["a"]}, "spec": {}}, id="labels as a list"),
        pytest.param({"metadata": {**HEAD, "ownerReferences": [3]}, "spec": {}}, id="an owner that is none"),
    ],
)  # fmt: skip
def test_malformed_copies_are_refused(document: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError, KeyError, AttributeError)):
        copies.read_copy(document)


def test_what_a_worker_says_is_cut_to_what_a_condition_may_have() -> None:
    loud = condition("Finished", reason="no reason\n", message="x" * 5000)
    found = copies.read_copy({"metadata": HEAD, "spec": {}, "status": {"conditions": [loud]}})
    (one,) = found["status"]["conditions"]
    assert (one["reason"], len(one["message"])) == ("Unknown", copies.LONGEST)

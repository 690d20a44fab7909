"""State of an admission check as the autoscaler's answers change it, attempt by attempt, and the
requests that it makes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuecontroller.cluster.admissionchecks.provisioning import Decision, config_of, decide
from queuecontroller.cluster.admissionchecks.requests import (
    Config,
    attempt_of,
    read_config,
    stem_of,
    template_name,
)
from queuecontroller.cluster.admissionchecks.states import Answer, State, checks_of, with_answers
from queuecontroller.cluster.status.workload_status import UNANSWERED
from queuecontroller.frameworks import PodSetInfo
from tests.queue.cluster.admissionchecks.workloads import pod_set, workload

NOW = "2026-11-23T10:00:00Z"


def config(**spec: Any) -> Config:
    head = {"name": "large"}
    return read_config({"metadata": head, "spec": {"provisioningClassName": "best", **spec}})


def request(
    attempt: int, *true: str, details: dict[str, str] | None = None, of: str = "best", **said: str
) -> dict[str, Any]:
    conditions = [{"type": one, "status": "True", "message": f"it is {one}"} for one in true]
    conditions += [{"type": one, "status": "False", "message": text} for one, text in said.items()]
    return {
        "metadata": {"namespace": "n", "name": f"w-nodes-{attempt}", "uid": f"r{attempt}"},
        "spec": {"provisioningClassName": of},
        "status": {"conditions": conditions, "provisioningClassDetails": details or {}},
    }


def decided(
    document: dict[str, Any],
    *owned: dict[str, Any],
    by: Config | None = None,
    infos: Sequence[PodSetInfo] = (),
) -> Decision:
    return decide(document, {"nodes": by or config()}, owned, infos)


def answered(document: dict[str, Any], *owned: dict[str, Any], by: Config | None = None) -> Answer:
    return decided(document, *owned, by=by).answers["nodes"]


def names(decision: Decision) -> tuple[list[str], list[str]]:
    """Requests that are made, and those that are deleted."""
    made = [one.request["metadata"]["name"] for one in decision.makes]
    return made, [one["metadata"]["name"] for one in decision.ends]


# -- by the autoscaler's conditions ---------------------------------------------------------------


def test_who_has_no_request_yet_gets_the_first() -> None:
    assert names(decided(workload())) == (["w-nodes-1"], [])


@pytest.mark.parametrize(
    ("conditions", "state", "message"),
    [
        pytest.param((), State.PENDING, UNANSWERED, id="nothing said"),
        pytest.param(("Accepted",), State.PENDING, UNANSWERED, id="accepted"),
        pytest.param(("Accepted", "Provisioned"), State.READY, "it is Provisioned", id="there"),
        pytest.param(("Provisioned", "Failed"), State.RETRY, "Retrying after the request failed: it is Failed", id="failed counts before all"),
        pytest.param(("Provisioned", "BookingExpired"), State.RETRY, "Retrying after the booking ran out: it is BookingExpired", id="booking ran out"),
        pytest.param(("Provisioned", "CapacityRevoked"), State.REJECTED, "it is CapacityRevoked", id="nodes taken away"),
    ],
)  # fmt: skip
def test_conditions_decide(conditions: tuple[str, ...], state: State, message: str) -> None:
    found = answered(workload(), request(1, *conditions))
    assert (found.state, found.message) == (state, message)


def test_the_time_of_arrival_is_told() -> None:
    found = answered(workload(), request(1, "Accepted", Provisioned="in 5 minutes"))
    assert (found.state, found.message) == (State.PENDING, "in 5 minutes")


def test_ready_pods_say_whose_nodes_they_use() -> None:
    selected = config(
        podSetUpdates={
            "nodeSelector": [
                {"key": "group", "valueFromProvisioningClassDetail": "NodeGroup"},
                {"key": "zone", "valueFromProvisioningClassDetail": "Zone"},
            ]
        }
    )
    both = workload("Pending", pod_set("a"), pod_set("b"))
    found = answered(both, request(1, "Provisioned", details={"NodeGroup": "g7"}), by=selected)
    annotations = {
        "autoscaling.x-k8s.io/consume-provisioning-request": "w-nodes-1",
        "autoscaling.x-k8s.io/provisioning-class-name": "best",
    }
    assert found.updates == tuple(
        {"name": one, "annotations": annotations, "nodeSelector": {"group": "g7"}} for one in "ab"
    )


def test_an_admitted_workload_needs_no_booking_but_its_nodes() -> None:
    admitted = workload("Ready", conditions=("QuotaReserved", "Admitted"))
    assert decided(admitted, request(1, "Provisioned", "BookingExpired")) == Decision({})
    revoked = request(1, "Provisioned", "CapacityRevoked")
    assert answered(admitted, revoked).state is State.REJECTED


# -- attempt by attempt ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attempt", "pause_s"), [(1, 60), (2, 120), (3, 240)], ids=["first", "second", "third"]
)
def test_pauses_double(attempt: int, pause_s: int) -> None:
    document = workload(retryCount=attempt - 1)
    found = answered(document, request(attempt, "Failed"))
    assert (found.state, found.again_s) == (State.RETRY, pause_s)


def test_a_pause_has_a_longest() -> None:
    found = answered(
        workload(retryCount=2),
        request(3, "Failed"),
        by=config(retryStrategy={"backoffBaseSeconds": 60, "backoffMaxSeconds": 100}),
    )
    assert found.again_s == 100


def test_past_the_limit_it_is_rejected() -> None:
    found = answered(workload(retryCount=3), request(4, "Failed"))
    assert (found.state, found.message) == (State.REJECTED, "it is Failed")


def test_the_next_attempt_takes_the_place_of_the_one_before() -> None:
    again = workload(retryCount=1)
    assert names(decided(again, request(1, "Failed"))) == (["w-nodes-2"], ["w-nodes-1"])
    assert names(decided(again)) == (["w-nodes-2"], []), "the one before is gone already"
    assert names(decided(again, request(1, "Failed"), request(2))) == ([], ["w-nodes-1"])


def test_while_it_asks_for_a_retry_nothing_is_made() -> None:
    assert decided(workload("Retry"), request(1, "Failed")) == Decision({})
    assert decided(workload("Retry")) == Decision({})


@pytest.mark.parametrize("condition", ["Evicted", "Finished"])
def test_whoever_is_over_keeps_no_request(condition: str) -> None:
    over = workload("Ready", conditions=("QuotaReserved", condition))
    assert names(decided(over, request(1, "Provisioned"))) == ([], ["w-nodes-1"])


def test_without_quota_there_is_no_request() -> None:
    waiting = workload()
    del waiting["status"]["admission"]
    assert names(decided(waiting, request(1))) == ([], ["w-nodes-1"])


def test_another_class_is_another_request_once_the_old_one_is_gone() -> None:
    old = request(1, of="other")
    assert names(decided(workload(), old)) == ([], ["w-nodes-1"])
    assert names(decided(workload())) == (["w-nodes-1"], [])
    running = workload("Ready", conditions=("QuotaReserved", "Admitted"))
    assert names(decided(running, old)) == ([], []), "nodes that are used are kept"


def test_a_check_that_is_not_active_waits() -> None:
    found = decide(workload(), {"nodes": None}, [request(1)], ())
    assert found.answers["nodes"] == Answer(State.PENDING, "the check is not active")
    assert names(found) == ([], [])


def test_the_check_of_somebody_else_is_left_alone() -> None:
    assert decide(workload(), {"other": config()}, (), ()) == Decision({})


# -- what is asked for ----------------------------------------------------------------------------


def made(document: dict[str, Any], by: Config, infos: Sequence[PodSetInfo] = ()) -> Any:
    (found,) = decided(document, by=by, infos=infos).makes
    return found


def test_a_request_names_a_template_for_each_pod_set() -> None:
    document = workload("Pending", pod_set("a"), pod_set("b"))
    document["metadata"]["annotations"] = {"provreq.kueue.x-k8s.io/ValidUntilSeconds": "600", "x": "y"}  # fmt: skip
    found = made(document, config(parameters={"p": "1"}))
    assert found.request["spec"] == {
        "provisioningClassName": "best",
        "parameters": {"p": "1", "ValidUntilSeconds": "600"},
        "podSets": [
            {"podTemplateRef": {"name": "ppt-w-nodes-1-a"}, "count": 2},
            {"podTemplateRef": {"name": "ppt-w-nodes-1-b"}, "count": 2},
        ],
    }
    assert [one["metadata"]["name"] for one in found.templates] == [
        "ppt-w-nodes-1-a",
        "ppt-w-nodes-1-b",
    ]
    (owner,) = found.request["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("Workload", "wu", True)


def test_templates_are_where_the_flavors_are_and_say_all_requests() -> None:
    limited = pod_set("main", limits={"nvidia.com/gpu": "1", "cpu": "4"})
    info = PodSetInfo("main", node_selector={"pool": "gpu"}, tolerations=({"key": "gpu"},))
    spec = made(workload("Pending", limited), config(), [info]).templates[0]["template"]["spec"]
    assert spec["nodeSelector"] == {"pool": "gpu"}
    assert spec["tolerations"] == [{"key": "gpu"}]
    assert spec["containers"][0]["resources"]["requests"] == {"cpu": "1", "nvidia.com/gpu": "1"}
    assert "nodeSelector" not in limited["template"]["spec"], "the Workload's own is untouched"


@pytest.mark.parametrize(
    ("policy", "second", "count"),
    [
        ("", pod_set("a"), [2, 2]),
        ("IdenticalPodTemplates", pod_set("a"), [4]),
        ("IdenticalPodTemplates", pod_set("b"), [2, 2]),
        ("IdenticalWorkloadSchedulingRequirements", pod_set("b"), [4]),
        ("IdenticalWorkloadSchedulingRequirements", pod_set("b", "2"), [2, 2]),
    ],
    ids=["no policy", "same", "another image", "same needs", "other needs"],
)
def test_pod_sets_that_are_alike_are_asked_for_as_one(
    policy: str, second: dict[str, Any], count: list[int]
) -> None:
    document = workload("Pending", pod_set("a"), {**second, "name": "z"})
    found = made(document, config(podSetMergePolicy=policy))
    assert [one["count"] for one in found.request["spec"]["podSets"]] == count


def test_only_pods_with_managed_resources_are_asked_for() -> None:
    gpus = config(managedResources=["nvidia.com/gpu"])
    document = workload("Pending", pod_set("cpu"), pod_set("gpu", limits={"nvidia.com/gpu": "1"}))
    assert [one["podTemplateRef"]["name"] for one in made(document, gpus).request["spec"]["podSets"]] == ["ppt-w-nodes-1-gpu"]  # fmt: skip
    none = answered(workload("Pending", pod_set("cpu")), by=gpus)
    assert none == Answer(State.READY, "the provisioning request is not needed")


# -- names and words ------------------------------------------------------------------------------

NAMES = st.text("abc-.1", min_size=1, max_size=253)


@given(NAMES, NAMES, st.integers(1, 999_999_999))
def test_names_fit_and_tell_their_attempt(name: str, check: str, attempt: int) -> None:
    stem = stem_of(name, check)
    whole = f"{stem}{attempt}"
    assert len(whole) <= 253
    assert attempt_of({"metadata": {"name": whole}}, stem) == attempt
    assert len(template_name(whole, "p" * 63)) <= 253


@pytest.mark.parametrize("other", ["w-nodes-", "w-nodes-1x", "w-nodes-١", "other-1"])
def test_other_names_are_no_attempts(other: str) -> None:
    assert attempt_of({"metadata": {"name": other}}, "w-nodes-") is None


def test_an_answer_that_is_there_is_not_written_again() -> None:
    document = workload()
    answers = {"nodes": Answer(State.READY, "there", ({"name": "main"},))}
    written = with_answers(document, answers, NOW)
    assert written is not None
    assert written[0]["lastTransitionTime"] == NOW
    document["status"]["admissionChecks"] = written
    assert with_answers(document, answers, "later") is None
    assert with_answers(document, {"unknown": Answer(State.READY)}, NOW) is None
    worded = with_answers(document, {"nodes": Answer(State.READY, "still there")}, "later")
    assert worded is not None
    assert worded[0]["lastTransitionTime"] == NOW, "its state is what it was"


def test_a_count_of_retries_outlives_answers() -> None:
    written = with_answers(workload(retryCount=2), {"nodes": Answer(State.READY)}, NOW)
    assert written is not None
    assert written[0]["retryCount"] == 2


@pytest.mark.parametrize(
    ("parameters", "why"),
    [
        (None, "spec.parameters: is missing: name a ProvisioningRequestConfig of kueue.x-k8s.io"),
        (
            {"apiGroup": "g", "kind": "K", "name": "large"},
            "spec.parameters: is a K of g: name a ProvisioningRequestConfig of kueue.x-k8s.io",
        ),
        (
            {"apiGroup": "kueue.x-k8s.io", "kind": "ProvisioningRequestConfig", "name": "none"},
            "spec.parameters: there is no ProvisioningRequestConfig none: create it",
        ),
        (
            {"apiGroup": "kueue.x-k8s.io", "kind": "ProvisioningRequestConfig", "name": "bad"},
            "ProvisioningRequestConfig bad.spec.provisioningClassName: is required",
        ),
    ],
    ids=["none", "another kind", "not there", "unreadable"],
)
def test_a_check_without_a_config_says_why(parameters: Any, why: str) -> None:
    bad = {"metadata": {"name": "bad"}, "spec": {}}
    assert config_of({"spec": {"parameters": parameters}}, {"bad": bad}) == (None, why)


OWNED = st.lists(
    st.tuples(
        st.integers(1, 6),
        st.sets(st.sampled_from(["Accepted", "Provisioned", "Failed", "BookingExpired", "CapacityRevoked"])),
        st.sampled_from(["best", "other"]),
    ),
    max_size=4,
    unique_by=lambda one: one[0],
)  # fmt: skip


@given(
    st.sampled_from(["Pending", "Ready", "Retry", "Rejected"]),
    st.integers(0, 5),
    OWNED,
    st.sets(st.sampled_from(["Evicted", "Finished", "Admitted"])),
)
def test_whatever_is_there_one_request_at_most_is_left_and_nothing_is_made_twice(
    state: str, tries: int, owned: list[tuple[int, set[str], str]], conditions: set[str]
) -> None:
    document = workload(state, conditions=sorted(conditions), retryCount=tries)
    requests = [request(number, *sorted(true), of=of) for number, true, of in owned]
    found = decided(document, *requests)
    makes, ends = names(found)
    left = {one["metadata"]["name"] for one in requests} - set(ends)
    assert len(left) + len(makes) <= 1
    assert not set(makes) & {one["metadata"]["name"] for one in requests}, "names are free"
    if makes:
        assert state == "Pending"
    for name, answer in found.answers.items():
        document["status"]["admissionChecks"] = (
            with_answers(document, {name: answer}, NOW) or (document["status"]["admissionChecks"])
        )
        if answer.state is State.RETRY:
            assert answer.again_s is not None
    if found.answers:  # what was answered is not answered again
        again = decided(document, *(one for one in requests if one["metadata"]["name"] in left))
        assert with_answers(document, again.answers, "later") is None
    assert checks_of(document)["nodes"]["state"] in set(State)

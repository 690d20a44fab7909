"""Refusals of an object as the API server receives them, with their texts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuecontroller.kueueapi import GROUP, KINDS
from queuecontroller.kueueapi.fields import Version
from queuecontroller.kueueapi.manifests.validating import problems_of
from queuecontroller.kueueapi.meaning import same_meaning
from queuecontroller.server.web.reviews import (
    LONGEST_MESSAGE,
    BadReview,
    converted,
    judged,
)
from tests.queue.kueueapi.documents import documents, typed
from tests.queue.kueueapi.reviews import admission, conversion, made

QUOTA = {"name": "cpu", "nominalQuota": 1}
FLAVOR = {"name": "f", "resources": [QUOTA]}
GROUP_OF_CPU = {"coveredResources": ["cpu"], "flavors": [FLAVOR]}


def pods(**more: object) -> dict[str, object]:
    template = {"spec": {"containers": [{"resources": {"requests": {"cpu": 1}}}]}}
    return {"podSets": [{"name": "main", "count": 2, "template": template, **more}]}


REFUSED = [
    pytest.param(made("ClusterQueue", {"cohortNam": "c"}), "spec.cohortNam: unknown field; did you mean cohortName?", id="a misspelt field"),
    pytest.param(made("ClusterQueue", {"cohortName": "A_b"}), "spec.cohortName: 'A_b' is not a name", id="a name of the wrong form"),
    pytest.param(made("ClusterQueue", {"preemption": {"withinClusterQueue": "Any"}}), "must be one of LowerOrNewerEqualPriority, LowerPriority, Never, got 'Any'", id="a value of another field"),
    pytest.param(made("ClusterQueue", {"resourceGroups": [{**GROUP_OF_CPU, "flavors": [FLAVOR, FLAVOR]}]}), "flavors[1]: 'f' is given twice", id="a flavor twice in a group"),
    pytest.param(made("ClusterQueue", {"resourceGroups": [GROUP_OF_CPU, GROUP_OF_CPU]}), "spec.resourceGroups[1].coveredResources: resource 'cpu' is in two groups", id="a resource in two groups"),
    pytest.param(made("ClusterQueue", {"resourceGroups": [{**GROUP_OF_CPU, "coveredResources": ["memory"]}]}), "resources[0].name: 'cpu' is not among the group's coveredResources", id="quota of what is not covered"),
    pytest.param(made("Cohort", {"resourceGroups": [GROUP_OF_CPU] * 17}), "spec.resourceGroups: has 17 entries, more than 16", id="too many groups"),
    pytest.param(made("ClusterQueue", {"cohort": "c"}), "spec.cohort: unknown field; did you mean cohortName?", id="an old field in the new version"),
    pytest.param(made("LocalQueue", {}), "spec.clusterQueue: is required (fix: add it)", id="a required field"),
    pytest.param(made("ResourceFlavor", {"nodeTaints": [{"key": "a", "effect": "Never"}]}), "spec.nodeTaints[0].effect: must be one of NoExecute, NoSchedule, PreferNoSchedule, got 'Never'", id="an effect that there is not"),
    pytest.param(made("Topology", {"levels": [{"nodeLabel": "a"}, {"nodeLabel": "a"}]}), "spec.levels[1]: 'a' is given twice", id="a level twice"),
    pytest.param(made("Topology", {"levels": []}), "spec.levels: is required", id="no level"),
    pytest.param(made("AdmissionCheck", {}), "spec.controllerName: is required", id="a check by nobody"),
    pytest.param(made("MultiKueueConfig", {"clusters": ["a", "a"]}), "spec.clusters[1]: 'a' is given twice", id="a cluster twice"),
    pytest.param(made("ProvisioningRequestConfig", {"provisioningClassName": "c", "retryStrategy": {"backoffLimit": 1}}), "did you mean backoffLimitCount?", id="a misspelt field of a kind that the engine does not have"),
    pytest.param(made("Workload", pods(minCount=3)), "spec.podSets[0].minCount: 3 is more than count (2)", id="more at least than at all"),
    pytest.param(made("Workload", pods(topologyRequest={"required": "r", "preferred": "p"})), "required and preferred are given together", id="two wishes"),
    pytest.param(made("Workload", pods(template={"spec": {"containers": [{"resources": {"requests": {"cpu": "x"}}}]}})), "spec.podSets[0].template.spec.containers[0].resources.requests.cpu: expected a quantity such as 1, 500m, 1.5, 2Gi or 1e3, got 'x'", id="a pod's request"),
    pytest.param(made("Workload", pods(template={"metadata": {"labels": {"a": "b c"}}, "spec": {"containers": []}})), "spec.podSets[0].template.metadata.labels: 'b c' is not a label's value", id="a label of its pods"),
    pytest.param(made("Workload", pods(template={"metadata": {"annotations": {"a b": "c"}}, "spec": {"containers": []}})), "spec.podSets[0].template.metadata.annotations: 'a b' is not an annotation's key", id="an annotation of its pods"),
    pytest.param({"apiVersion": f"{GROUP}/v1beta2", "kind": "WorkloadPriorityClass", "metadata": {"name": "x"}}, "value: is required", id="a class without a value"),
    pytest.param({"kind": "Job"}, "kind: expected a kind of kueue.x-k8s.io, got 'Job'", id="another kind"),
]  # fmt: skip


@pytest.mark.parametrize(("document", "said"), REFUSED)
def test_what_is_wrong_is_told_with_its_field(document: dict[str, Any], said: str) -> None:
    answer = json.loads(judged(admission(document)))["response"]
    assert answer["allowed"] is False
    assert said in answer["status"]["message"]
    assert answer["status"]["message"].count(said) == 1, "told once"
    assert answer["uid"] == "7"


RESERVED = {"conditions": [{"type": "QuotaReserved", "status": "True"}]}


@pytest.mark.parametrize(
    ("spec", "status", "refused"),
    [
        (pods(count=3), RESERVED, "spec.podSets"),
        ({**pods(), "queueName": "other"}, RESERVED, "spec.queueName"),
        ({**pods(), "active": False}, RESERVED, ""),
        ({**pods(), "priority": 7}, RESERVED, ""),
        (pods(count=3), {}, ""),
    ],
)
def test_what_holds_quota_keeps_its_pods(
    spec: dict[str, Any], status: dict[str, Any], refused: str
) -> None:
    old = made("Workload", pods(), status=status)
    told = [one.field for one in problems_of(made("Workload", spec, status=status), old)]
    assert told == ([refused] if refused else [])


def classed(kind: str, name: str) -> dict[str, Any]:
    group = {"WorkloadPriorityClass": "kueue.x-k8s.io", "PriorityClass": "scheduling.k8s.io"}[kind]
    ref = {"group": group, "kind": kind, "name": name}
    return made("Workload", {**pods(), "priorityClassRef": ref, "priority": 1}, status=RESERVED)


def test_a_workload_priority_class_may_change_while_quota_is_held() -> None:
    old = classed("WorkloadPriorityClass", "low")
    assert problems_of(classed("WorkloadPriorityClass", "high"), old) == []
    (told,) = problems_of(classed("PriorityClass", "high"), old)
    assert told.field == "spec.priorityClassRef"
    (told,) = problems_of(classed("PriorityClass", "high"), classed("PriorityClass", "low"))
    assert told.field == "spec.priorityClassRef"
    (told,) = problems_of(made("Workload", pods(), status=RESERVED), old)
    assert told.field == "spec.priorityClassRef"


@pytest.mark.parametrize(
    ("annotation", "count", "refused"),
    [("true", 1, []), ("true", 4, ["spec.podSets"]), ("false", 1, ["spec.podSets"])],
    ids=["an elastic job's may shrink", "but not grow", "another's may not"],
)
def test_the_workload_of_an_elastic_job_may_lose_pods(
    annotation: str, count: int, refused: list[str]
) -> None:
    old, new = (made("Workload", pods(count=one), status=RESERVED) for one in (3, count))
    new["metadata"] = {
        **new["metadata"],
        "annotations": {"kueue.x-k8s.io/elastic-job": annotation},
    }
    assert [one.field for one in problems_of(new, old)] == refused


TEMPLATE = {
    "metadata": {"labels": {}, "annotations": {"a": "b"}},
    "spec": {
        "hostNetwork": False,
        "volumes": [{"name": "v", "emptyDir": {}}],
        "tolerations": [],
        "containers": [
            {"name": "c", "env": [{"name": "E", "value": ""}], "resources": {"requests": {"cpu": "1000m", "memory": "1024Mi"}}},
        ],
    },
}  # fmt: skip
TYPED_TEMPLATE = {
    "metadata": {"creationTimestamp": None, "annotations": {"a": "b"}},
    "spec": {
        "volumes": [{"name": "v", "emptyDir": {}}],
        "containers": [
            {"name": "c", "env": [{"name": "E"}], "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}},
        ],
    },
}  # fmt: skip
"""The same as a client with types writes it."""


def without(template: dict[str, Any], *path: Any) -> dict[str, Any]:
    """A copy of the template without one field."""
    copied: dict[str, Any] = json.loads(json.dumps(template))
    found: Any = copied
    for step in path[:-1]:
        found = found[step]
    del found[path[-1]]
    return copied


def test_a_client_with_types_may_write_back_what_it_read() -> None:
    old = made("Workload", pods(template=TEMPLATE), status=RESERVED)
    typed = {**pods(template=TYPED_TEMPLATE), "active": False}
    assert problems_of(made("Workload", typed, status=RESERVED), old) == []


@pytest.mark.parametrize(
    "path",
    [
        ("metadata", "annotations", "a"),
        ("spec", "volumes", 0, "emptyDir"),
        ("spec", "containers", 0, "env", 0),
        ("spec", "containers", 0, "resources", "requests", "cpu"),
        ("spec", "containers", 0),
    ],
)
def test_what_is_left_out_of_a_template_is_a_change(path: tuple[Any, ...]) -> None:
    old = made("Workload", pods(template=TEMPLATE), status=RESERVED)
    new = made("Workload", pods(template=without(TYPED_TEMPLATE, *path)), status=RESERVED)
    assert [one.field for one in problems_of(new, old)] == ["spec.podSets"]


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_a_typed_round_trip_changes_nothing(kind: str, data: st.DataObject) -> None:
    version = data.draw(st.sampled_from((Version.V1BETA1, Version.V1BETA2)))
    old = {**data.draw(documents(kind, version)), "status": RESERVED}
    assert problems_of(typed(old), old) == []
    assert problems_of(old, typed(old)) == []


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (None, "example.com/a,b.io/y", ""),
        (None, "example.com/a, b.io/y", "' b.io/y' is not the name of a controller"),
        (None, "nothing", "'nothing' is not the name"),
        (None, "a.io/x,a.io/x", "'a.io/x' is given twice"),
        ("a.io/x,b.io/y", "b.io/y", ""),
        ("a.io/x", "", ""),
        ("a.io/x", "a.io/x,b.io/y", "'b.io/y' cannot be added"),
        ("", "a.io/x", "'a.io/x' cannot be added"),
    ],
)
def test_admission_gates_are_named_at_creation_and_only_removed(
    before: str | None, after: str, said: str
) -> None:
    def gated(by: str) -> dict[str, Any]:
        document = made("Workload", pods())
        annotations = {"kueue.x-k8s.io/admission-gated-by": by} if by else {}
        return {**document, "metadata": {**document["metadata"], "annotations": annotations}}

    found = problems_of(gated(after), None if before is None else gated(before))
    assert bool(found) is bool(said)
    assert all(said in str(one) for one in found)


def test_an_empty_selector_of_namespaces_is_not_a_missing_one() -> None:
    old, new = made("ClusterQueue", {"namespaceSelector": {}}), made("ClusterQueue", {})
    assert not same_meaning(old["spec"], new["spec"], KINDS["ClusterQueue"].fields.of["spec"], None)


def test_what_is_stored_already_can_lose_its_finalizers() -> None:
    old = made("LocalQueue", {"clusterQueue": "Of_Old"})
    assert problems_of(old) != []
    new = {**old, "metadata": {**old["metadata"], "finalizers": []}}
    assert problems_of(new, old) == []
    assert problems_of({**new, "spec": {"clusterQueue": "Another_One"}}, old) != []


@pytest.mark.parametrize(
    "document",
    [
        made("ClusterQueue", {"resourceGroups": [GROUP_OF_CPU]}),
        made("ClusterQueue", {"cohort": "c", "flavorFungibility": {"whenCanBorrow": "Borrow"}}, "v1beta1"),
        made("ClusterQueue", {"resourceGroups": [{**GROUP_OF_CPU, "flavors": [{"name": "f", "resources": [{"name": "cpu", "nominalQuota": "auto"}]}]}]}),
        made("Workload", pods(minCount=1)),
        made("ResourceFlavor", None),
        made("MultiKueueCluster", {"kubeConfig": {"location": "s"}}, "v1beta1"),
        made("MultiKueueCluster", {"clusterSource": {"kubeConfig": {"location": "s"}}}),
    ],
)  # fmt: skip
def test_what_is_right_is_let_in(document: dict[str, Any]) -> None:
    assert problems_of(document) == []
    assert json.loads(judged(admission(document)))["response"] == {"uid": "7", "allowed": True}


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_whatever_the_schema_takes_is_answered(kind: str, data: st.DataObject) -> None:
    version = data.draw(st.sampled_from((Version.V1BETA1, Version.V1BETA2)))
    for one in problems_of(data.draw(documents(kind, version))):
        assert one.field
        assert one.message


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(("spec", "metadata", "status", "podSets", "resourceGroups", "levels", "name")), inner, max_size=4
        ),
        max_leaves=12,
    ),
    st.sampled_from(sorted(KINDS)),
)  # fmt: skip
def test_nonsense_is_refused_and_never_a_fault_of_ours(body: object, kind: str) -> None:
    document = {
        "apiVersion": f"{GROUP}/v1beta2",
        "kind": kind,
        **(body if isinstance(body, dict) else {"spec": body}),
    }
    assert json.loads(judged(admission(document)))["response"]["uid"] == "7"
    review = conversion([document], f"{GROUP}/v1beta1")
    assert json.loads(converted(review))["response"]["result"]["status"] in ("Success", "Failure")


def test_objects_come_back_converted_in_their_order() -> None:
    given_ = [made("ClusterQueue", {"cohort": str(i)}, "v1beta1") for i in range(3)]
    response = json.loads(converted(conversion(given_, f"{GROUP}/v1beta2")))["response"]
    assert response["result"] == {"status": "Success"}
    assert [one["spec"]["cohortName"] for one in response["convertedObjects"]] == ["0", "1", "2"]


def test_an_object_that_cannot_be_converted_is_named() -> None:
    given_ = [made("Cohort", {}), {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}]
    response = json.loads(converted(conversion(given_, f"{GROUP}/v1beta1")))["response"]
    assert response["result"]["status"] == "Failure"
    assert response["result"]["message"].startswith("p: kind: must be one of")
    assert response["convertedObjects"] == []


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"\xff", "is not JSON"),
        (b"[]", "no request with a uid"),
        (b'{"request": {"uid": 7}}', "no request with a uid"),
        (b'{"request": {"uid": "7"}}', "expected "),
        (conversion(7, "x"), "expected "),
    ],
)
def test_a_question_that_is_none_is_refused(body: bytes, said: str) -> None:
    for answer in (judged, converted):
        with pytest.raises(BadReview, match=said):
            answer(body)


def test_a_long_list_of_mistakes_is_cut() -> None:
    document = made("Cohort", {f"field{i}": 1 for i in range(5000)})
    assert (
        len(json.loads(judged(admission(document)))["response"]["status"]["message"])
        == LONGEST_MESSAGE + 1
    )

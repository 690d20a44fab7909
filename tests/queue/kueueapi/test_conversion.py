"""Conversion from version to version and back: nothing a user wrote is lost, and no annotation can
contradict the object."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuecontroller.kueueapi import GROUP, KINDS
from queuecontroller.kueueapi.conversion import LARGEST_KEPT, ConversionError, convert
from queuecontroller.kueueapi.fields import Version
from queuecontroller.scheduler.placement.topology.slices import domains_of, slices_of
from tests.queue.kueueapi.documents import documents

OLD, NEW = f"{GROUP}/v1beta1", f"{GROUP}/v1beta2"
PAIRS = [(kind, version) for kind in KINDS for version in (Version.V1BETA1, Version.V1BETA2)]


def other(version: Version) -> str:
    return NEW if version is Version.V1BETA1 else OLD


def comparable(document: dict[str, Any]) -> dict[str, Any]:
    """Slices by what they mean: there are many ways to write one list of domains."""
    made: dict[str, Any] = json.loads(json.dumps(document))
    admission = (made.get("status") or {}).get("admission") or {}
    for one in admission.get("podSetAssignments") or []:
        place = one.get("topologyAssignment") or {}
        if "slices" in place:
            place["slices"] = domains_of(place["slices"])
        if "domains" in place:
            place["domains"] = domains_of(slices_of(place["domains"]))
    return made


@pytest.mark.parametrize(("kind", "version"), PAIRS)
@given(data=st.data())
def test_the_way_there_and_back_loses_nothing(
    kind: str, version: Version, data: st.DataObject
) -> None:
    before = data.draw(documents(kind, version))
    there = convert(before, other(version))
    assert there["apiVersion"] == other(version)
    assert comparable(convert(there, before["apiVersion"])) == comparable(before)


@pytest.mark.parametrize(("kind", "version"), PAIRS)
@given(data=st.data())
def test_the_third_way_is_as_the_first(kind: str, version: Version, data: st.DataObject) -> None:
    before = data.draw(documents(kind, version))
    there = convert(before, other(version))
    again = convert(convert(there, before["apiVersion"]), other(version))
    assert comparable(again) == comparable(there)


@pytest.mark.parametrize(("kind", "version"), PAIRS)
@given(data=st.data())
def test_what_comes_out_has_only_fields_of_its_version(
    kind: str, version: Version, data: st.DataObject
) -> None:
    made = convert(data.draw(documents(kind, version)), other(version))
    to = Version.V1BETA2 if version is Version.V1BETA1 else Version.V1BETA1
    for part in ("spec", "status"):
        row = KINDS[kind].fields.of.get(part)
        if row is not None:
            known = {name for name, one in row.type.of.items() if to in one.versions}  # type: ignore[union-attr]
            assert set(made.get(part, {})) <= known


@given(data=st.data())
def test_a_change_in_one_version_is_seen_in_the_other(data: st.DataObject) -> None:
    before = data.draw(documents("ClusterQueue", Version.V1BETA1))
    there = convert(before, NEW)
    there.setdefault("spec", {})["cohortName"] = "moved"
    assert convert(there, OLD)["spec"]["cohort"] == "moved"


CASES = [
    ("ClusterQueue", {"cohort": "c"}, {"cohortName": "c"}),
    ("ClusterQueue", {"flavorFungibility": {"whenCanBorrow": "Borrow", "whenCanPreempt": "Preempt"}}, {"flavorFungibility": {"whenCanBorrow": "MayStopSearch", "whenCanPreempt": "MayStopSearch"}}),
    ("ClusterQueue", {"flavorFungibility": {"whenCanBorrow": "TryNextFlavor"}}, {"flavorFungibility": {"whenCanBorrow": "TryNextFlavor"}}),
    ("Workload", {"priorityClassName": "high", "priorityClassSource": "kueue.x-k8s.io/workloadpriorityclass"}, {"priorityClassRef": {"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": "high"}}),
    ("Workload", {"priorityClassName": "high", "priorityClassSource": "scheduling.k8s.io/priorityclass"}, {"priorityClassRef": {"group": "scheduling.k8s.io", "kind": "PriorityClass", "name": "high"}}),
    ("MultiKueueCluster", {"kubeConfig": {"location": "s"}}, {"clusterSource": {"kubeConfig": {"location": "s"}}}),
    ("MultiKueueCluster", {"clusterProfileRef": {"name": "p"}}, {"clusterSource": {"clusterProfileRef": {"name": "p"}}}),
]  # fmt: skip


def made(kind: str, version: str, **parts: object) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "x"}, **parts}


@pytest.mark.parametrize(("kind", "old", "new"), CASES)
def test_each_difference_both_ways(kind: str, old: dict[str, Any], new: dict[str, Any]) -> None:
    assert convert(made(kind, OLD, spec=old), NEW) == made(kind, NEW, spec=new)
    assert convert(made(kind, NEW, spec=new), OLD) == made(kind, OLD, spec=old)


def test_a_list_of_checks_becomes_a_strategy_and_comes_back_as_a_list() -> None:
    old = made("ClusterQueue", OLD, spec={"admissionChecks": ["a", "b"]})
    new = convert(old, NEW)
    assert new["spec"] == {
        "admissionChecksStrategy": {"admissionChecks": [{"name": "a"}, {"name": "b"}]}
    }
    assert convert(new, OLD) == old
    new["spec"]["admissionChecksStrategy"]["admissionChecks"].append({"name": "c"})
    names = convert(new, OLD)["spec"]["admissionChecksStrategy"]["admissionChecks"]
    assert [one["name"] for one in names] == ["a", "b", "c"], "what was kept is stale"


STATUSES = [
    ("LocalQueue", {"flavorUsage": [{"name": "f", "resources": []}]}, {"flavorsUsage": [{"name": "f", "resources": []}]}),
    ("Workload", {"accumulatedPastExexcutionTimeSeconds": 3}, {"accumulatedPastExecutionTimeSeconds": 3}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "old", "new"), STATUSES)
def test_renamed_fields_of_a_status(kind: str, old: dict[str, Any], new: dict[str, Any]) -> None:
    assert convert(made(kind, OLD, status=old), NEW)["status"] == new
    assert convert(made(kind, NEW, status=new), OLD)["status"] == old


def test_what_ends_with_v1beta1() -> None:
    queue = made("ClusterQueue", OLD, status={"pendingWorkloadsStatus": {}, "pendingWorkloads": 1})
    assert convert(queue, NEW)["status"] == {"pendingWorkloads": 1}
    local = made("LocalQueue", OLD, status={"flavors": [], "pendingWorkloads": 1})
    assert convert(local, NEW)["status"] == {"pendingWorkloads": 1}


def test_a_delay_that_nobody_uses_is_kept_for_who_wrote_it() -> None:
    old = made("AdmissionCheck", OLD, spec={"controllerName": "a/b", "retryDelayMinutes": 15})
    new = convert(old, NEW)
    assert new["spec"] == {"controllerName": "a/b"}
    assert convert(new, OLD) == old


def test_places_of_pods() -> None:
    domains = [{"values": ["rack-1", f"node-{i}.a"], "count": 2 if i else 1} for i in range(3)]
    slices = slices_of(domains)
    assert slices == [
        {
            "domainCount": 3,
            "podCounts": {"individual": [1, 2, 2]},
            "valuesPerLevel": [
                {"universal": "rack-1"},
                {"individual": {"prefix": "node-", "suffix": ".a", "roots": ["0", "1", "2"]}},
            ],
        }
    ]
    assert domains_of(slices) == domains


@given(
    st.lists(
        st.tuples(st.text(max_size=4), st.text("ab", max_size=4), st.integers(1, 3)), max_size=6
    )
)
def test_any_places_come_back_in_their_order(places: list[tuple[str, str, int]]) -> None:
    domains = [{"values": [rack, node], "count": pods} for rack, node, pods in places]
    assert domains_of(slices_of(domains)) == domains


def test_a_few_bytes_do_not_become_many() -> None:
    level = [{"universal": "x" * 60}]
    huge = {"domainCount": 2**31 - 1, "podCounts": {"universal": 1}, "valuesPerLevel": level}
    assert domains_of([huge]) == []
    large = {**huge, "domainCount": 60_000}
    assert len(domains_of([large] * 1000)) == 60_000


@pytest.mark.parametrize(
    "kept",
    [
        '{"cohort":"other"}', '{"resourceGroups":[]}', '{"status":{"admission":{}}}', "[]", "7", "null", "{", "{" * 5000,
        '{"a":' * 500 + "1" + "}" * 500, json.dumps({"a": "b" * LARGEST_KEPT}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("side", ["v1beta1", "v1beta2"])
def test_a_forged_annotation_changes_nothing(side: str, kept: str) -> None:
    version, to = (NEW, OLD) if side == "v1beta1" else (OLD, NEW)
    key, moved = ("cohortName", "cohort") if side == "v1beta1" else ("cohort", "cohortName")
    document = made("ClusterQueue", version, spec={key: "mine"})
    document["metadata"]["annotations"] = {f"sluice.dev/as-{side}": kept}
    assert convert(document, to) == made("ClusterQueue", to, spec={moved: "mine"})


def test_v1alpha2_of_a_cluster_queue_is_v1beta1() -> None:
    old = made("ClusterQueue", f"{GROUP}/v1alpha2", spec={"cohort": "c"})
    assert convert(old, NEW)["spec"] == {"cohortName": "c"}
    assert convert(old, OLD)["spec"] == {"cohort": "c"}
    assert convert(convert(old, NEW), f"{GROUP}/v1alpha2") == old


@pytest.mark.parametrize(
    ("document", "wanted", "said"),
    [
        ({"kind": "Job"}, NEW, "kind: must be one of"),
        ({"kind": ["x"]}, NEW, "kind: must be one of"),
        (
            {"kind": "Cohort", "apiVersion": "batch/v1"},
            NEW,
            "expected a version of kueue.x-k8s.io, got 'batch/v1'",
        ),
        (
            {"kind": "Cohort", "apiVersion": OLD},
            f"{GROUP}/v9",
            "expected a version of kueue.x-k8s.io, got 'kueue.x-k8s.io/v9'",
        ),
        ({"kind": "Cohort", "apiVersion": f"{GROUP}/v1alpha2"}, NEW, "Cohort is not served as"),
    ],
)
def test_what_cannot_be_converted_is_named(
    document: dict[str, Any], wanted: str, said: str
) -> None:
    with pytest.raises(ConversionError, match=said):
        convert(document, wanted)

"""Starting adds what an admission gives, in one patch; stopping puts back what was there."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from queuecontroller.frameworks import (
    Holding,
    PodSetInfo,
    framework_of,
    frameworks,
    is_suspended,
    pod_sets,
    start_patch,
    stop_patch,
    workload_of,
)
from queuecontroller.frameworks.names import PATCHES_MANAGER as MANAGER
from queuecontroller.frameworks.patches import merged
from queuecontroller.frameworks.starting import before_start
from sluicecommon.reader import ManifestError
from tests.queue.frameworks.samples import RUNTIME, SAMPLES, pod, runtime_patch, sample

TOLERATION = {"key": "spot", "operator": "Exists", "effect": "NoSchedule"}


def started(document: dict[str, Any], infos: list[PodSetInfo]) -> dict[str, Any]:
    fw = framework_of(document)
    assert fw is not None
    for _ in range(2):
        document = merged(document, start_patch(fw, document, infos, RUNTIME))
    assert not is_suspended(fw, document)
    return document


def stopped(document: dict[str, Any], originals: Any = ()) -> dict[str, Any]:
    fw = framework_of(document)
    assert fw is not None
    for _ in range(2):
        document = merged(document, stop_patch(fw, document, originals, RUNTIME))
    assert is_suspended(fw, document)
    return document


def infos_for(document: dict[str, Any], **more: Any) -> list[PodSetInfo]:
    fw = framework_of(document)
    assert fw is not None
    given = {
        "labels": {"kueue.x-k8s.io/podset": "x"},
        "annotations": {"kueue.x-k8s.io/workload": "w"},
        "node_selector": {"pool": "spot"},
        "tolerations": (TOLERATION,),
        **more,
    }
    return [
        PodSetInfo(one["name"], one["count"], **given) for one in pod_sets(fw, document, RUNTIME)
    ]


def canonical(document: object) -> str:
    return json.dumps(document, sort_keys=True)


def test_every_kind_that_can_be_suspended_has_a_sample() -> None:
    assert {one.name for one in frameworks() if one.holding is Holding.SUSPEND} == set(SAMPLES)


@pytest.mark.parametrize("name", SAMPLES)
def test_pod_sets_have_the_names_and_counts_of_the_job(name: str) -> None:
    document, wanted = SAMPLES[name]
    fw = framework_of(document)
    assert fw is not None
    assert fw.name == name
    found = pod_sets(fw, document, RUNTIME)
    assert [(one["name"], one["count"]) for one in found] == wanted
    assert all(one["template"]["spec"]["containers"] for one in found)


@pytest.mark.parametrize("name", SAMPLES)
def test_start_and_stop_leave_the_document_as_it_was_byte_for_byte(name: str) -> None:
    document = sample(name)
    before = canonical(document)
    running = started(document, infos_for(document))
    assert canonical(document) == before  # nothing is changed in place
    assert '"pool": "spot"' in canonical(running)
    assert canonical(stopped(running)) == before


@pytest.mark.parametrize("name", SAMPLES)
def test_a_start_reaches_the_pods_of_every_pod_set(name: str) -> None:
    document = sample(name)
    text = canonical(started(document, infos_for(document)))
    sets = len(SAMPLES[name][1])
    assert text.count('"pool": "spot"') == sets
    assert text.count('"key": "spot"') == sets
    assert text.count('"kueue.x-k8s.io/podset": "x"') == sets


@pytest.mark.parametrize("name", SAMPLES)
def test_a_second_start_and_a_second_stop_change_nothing(name: str) -> None:
    document = sample(name)
    fw = framework_of(document)
    assert fw is not None
    running = started(document, infos_for(document))
    assert start_patch(fw, running, infos_for(document), RUNTIME) == {}
    held = stopped(running)
    assert stop_patch(fw, held, (), RUNTIME) == {}


@pytest.mark.parametrize("name", SAMPLES)
def test_a_start_with_other_flavors_first_takes_back_what_the_last_one_added(name: str) -> None:
    document = sample(name)
    first = started(document, infos_for(document))
    fw = framework_of(document)
    assert fw is not None
    only_suspended = merged(first, {"spec": {"suspend": True}})
    for path in (("spec", "runPolicy"), ("spec", "rayClusterConfig")):
        if fw.suspend[:2] == path:
            only_suspended = merged(first, {"spec": {path[1]: {"suspend": True}}})
    again = started(only_suspended, infos_for(document, node_selector={"pool": "other"}))
    text = canonical(again)
    assert '"pool": "spot"' not in text
    assert text.count('"pool": "other"') == len(SAMPLES[name][1])
    assert canonical(stopped(again)) == canonical(document)


@pytest.mark.parametrize("name", SAMPLES)
def test_a_start_that_gives_nothing_only_unsuspends(name: str) -> None:
    document = sample(name)
    fw = framework_of(document)
    assert fw is not None
    bare = [PodSetInfo(one["name"]) for one in pod_sets(fw, document, RUNTIME)]
    patch: Any = {}
    for step in reversed(fw.suspend):
        patch = {step: patch if patch else False} if patch or step == fw.suspend[-1] else patch
    assert start_patch(fw, document, bare, RUNTIME) == patch


OF_TEMPLATES = [
    name
    for name in SAMPLES
    if name.split("/")[0] not in ("workload.codeflare.dev", "sparkoperator.k8s.io")
    and name not in ("trainer.kubeflow.org/trainjob", "ray.io/rayjob")
]


@pytest.mark.parametrize("name", OF_TEMPLATES)
def test_what_another_controller_started_gets_back_what_its_workload_has(name: str) -> None:
    document = sample(name)
    fw = framework_of(document)
    assert fw is not None
    originals = workload_of(fw, document, queue="queue", runtime=RUNTIME)["spec"]["podSets"]
    running = started(document, infos_for(document))
    del running["metadata"]["annotations"]  # Kueue leaves no note
    assert canonical(stopped(running, originals)) == canonical(document)


def test_a_job_keeps_its_controllers_labels_when_it_is_put_back_by_its_workload() -> None:
    document = sample("batch/job")
    labels = document["spec"]["template"]["metadata"]["labels"]
    labels |= {"controller-uid": "0c5e", "batch.kubernetes.io/job-name": "sample"}
    fw = framework_of(document)
    assert fw is not None
    originals = workload_of(fw, document, queue="queue")["spec"]["podSets"]
    assert "controller-uid" not in canonical(originals)
    running = started(document, infos_for(document))
    del running["metadata"]["annotations"]
    assert canonical(stopped(running, originals)) == canonical(document)


def test_fewer_pods_are_let_in_where_a_job_takes_fewer() -> None:
    document = sample("batch/job")
    document["metadata"]["annotations"] = {
        "kueue.x-k8s.io/job-min-parallelism": "2",
        "kueue.x-k8s.io/job-completions-equal-parallelism": "true",
    }
    document["spec"]["completions"] = 4
    running = started(document, [PodSetInfo("main", 2)])
    assert (running["spec"]["parallelism"], running["spec"]["completions"]) == (2, 2)
    assert canonical(stopped(running)) == canonical(document)


def test_a_job_that_takes_no_fewer_keeps_its_count() -> None:
    document = sample("batch/job")
    assert started(document, [PodSetInfo("main", 2)])["spec"]["parallelism"] == 4


def test_a_running_job_is_only_suspended_at_first() -> None:
    """Kubernetes takes no change of the pods of a Job that runs, nor with the write that ends it."""
    document = sample("batch/job")
    fw = framework_of(document)
    assert fw is not None
    running = started(document, infos_for(document))
    assert stop_patch(fw, running) == {"spec": {"suspend": True}}


def test_a_trainjob_is_prepared_before_it_is_let_run() -> None:
    document = sample("trainer.kubeflow.org/trainjob")
    fw = framework_of(document)
    assert fw is not None
    infos = infos_for(document)
    first = merged(document, start_patch(fw, document, infos, RUNTIME))
    assert is_suspended(fw, first)
    team, ours = first["spec"]["runtimePatches"]
    assert team == document["spec"]["runtimePatches"][0]
    jobs = ours["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    assert [one["name"] for one in jobs] == ["initializer", "node"]
    assert jobs[1]["template"]["spec"]["template"] == {
        "metadata": {
            "labels": {"kueue.x-k8s.io/podset": "x"},
            "annotations": {"kueue.x-k8s.io/workload": "w"},
        },
        "spec": {"nodeSelector": {"pool": "spot"}, "tolerations": [TOLERATION]},
    }
    assert start_patch(fw, first, infos, RUNTIME) == {"spec": {"suspend": False}}


def trainjob(**spec: Any) -> dict[str, Any]:
    document = sample("trainer.kubeflow.org/trainjob")
    del document["spec"]["runtimePatches"]
    document["spec"].update(spec)
    return document


@pytest.mark.parametrize(
    "document",
    [
        trainjob(),
        trainjob(runtimePatches=[runtime_patch("example.com/team")]),
        trainjob(runtimePatches=[runtime_patch(MANAGER), runtime_patch("example.com/team")]),
    ],
    ids=["no entry", "another manager's", "ours first"],
)
def test_other_managers_change_a_trainjobs_runtime_patches_meanwhile(
    document: dict[str, Any],
) -> None:
    """The list is ordered by who came when, so the entry's place is looked up again."""
    fw = framework_of(document)
    assert fw is not None
    running = started(document, infos_for(document))
    late = runtime_patch("example.com/late")
    running["spec"]["runtimePatches"].insert(0, late)
    there = before_start(running)
    assert pod_sets(fw, there, RUNTIME) == pod_sets(fw, document, RUNTIME)
    found = stopped(running)["spec"]["runtimePatches"]
    assert found == [late, *document["spec"].get("runtimePatches", ())]


def test_a_trainjob_of_a_trainer_before_2_2_is_prepared_by_overrides() -> None:
    """Its API server drops runtimePatches, the webhook's entry as well."""
    document = trainjob()
    fw = framework_of(document)
    assert fw is not None
    infos = infos_for(document)
    steps = 0
    running = document
    while is_suspended(fw, running):
        running = merged(running, start_patch(fw, running, infos, RUNTIME))
        running["spec"].pop("runtimePatches", None)
        steps += 1
    assert steps == 3
    overrides = running["spec"]["podTemplateOverrides"]
    assert [one["targetJobs"] for one in overrides] == [
        [{"name": "initializer"}],
        [{"name": "node"}],
    ]
    assert overrides[1]["spec"]["nodeSelector"] == {"pool": "spot"}
    assert canonical(stopped(running)) == canonical(document)


@pytest.mark.parametrize("key", ["podTemplateOverrides", "podSpecOverrides"])
def test_a_trainjob_with_overrides_is_prepared_by_overrides(key: str) -> None:
    place = {"nodeSelector": {"disk": "fast"}}
    given = place if key == "podSpecOverrides" else {"spec": place}
    document = trainjob(**{key: [{"targetJobs": [{"name": "node"}], **given}]})
    fw = framework_of(document)
    assert fw is not None
    _, node = pod_sets(fw, document, RUNTIME)
    assert node["template"]["spec"]["nodeSelector"] == {"zone": "a", "disk": "fast"}
    running = started(document, infos_for(document))
    assert len(running["spec"][key]) == 3
    assert "runtimePatches" not in running["spec"]
    assert canonical(stopped(running)) == canonical(document)


def test_what_a_trainjob_changes_in_its_runtime_counts_for_its_pods() -> None:
    kept, given = {"key": "a", "operator": "Exists"}, {"key": "b", "operator": "Exists"}
    change = {"nodeSelector": {"disk": "fast"}, "tolerations": [given], "affinity": {"x": {}}}
    patch = runtime_patch("example.com/team", node=change)
    job = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"][0]
    required = {"kueue.x-k8s.io/podset-required-topology": "rack"}
    job["template"]["spec"]["template"]["metadata"] = {"annotations": required}
    document = trainjob(runtimePatches=[patch])
    fw = framework_of(document)
    assert fw is not None
    runtime = json.loads(json.dumps(RUNTIME))
    (_, node) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    node["template"]["spec"]["template"]["spec"]["tolerations"] = [kept]
    first, second = pod_sets(fw, document, runtime)
    assert "nodeSelector" not in first["template"]["spec"]
    spec = second["template"]["spec"]
    assert spec["nodeSelector"] == {"zone": "a", "disk": "fast"}
    assert spec["tolerations"] == [given], "a strategic merge patch replaces them"
    assert spec["affinity"] == {"x": {}}
    assert second["template"]["metadata"]["annotations"] == required
    assert second["topologyRequest"]["required"] == "rack"


def test_a_trainjob_that_kueue_started_is_restored() -> None:
    ours = runtime_patch(MANAGER, node={"nodeSelector": {"pool": "spot"}})
    document = trainjob(suspend=False, runtimePatches=[runtime_patch("example.com/team"), ours])
    found = stopped(document)["spec"]["runtimePatches"]
    assert found == [runtime_patch("example.com/team"), runtime_patch(MANAGER)]


def test_a_contradiction_is_told_by_the_field() -> None:
    document = sample("batch/job")
    fw = framework_of(document)
    assert fw is not None
    with pytest.raises(ManifestError) as told:
        start_patch(fw, document, [PodSetInfo("main", node_selector={"zone": "b"})])
    assert str(told.value) == (
        "spec.template.spec.nodeSelector.zone: is 'a' already, and admission gives it 'b'"
    )


def test_pod_sets_that_are_not_those_of_the_job_are_refused() -> None:
    document = sample("batch/job")
    fw = framework_of(document)
    assert fw is not None
    with pytest.raises(ManifestError, match="pod sets"):
        start_patch(fw, document, [PodSetInfo("other")])


def test_a_note_that_somebody_wrote_himself_reaches_only_his_spec() -> None:
    document = sample("batch/job")
    note = {
        "undo": [[["metadata", "labels"], {}], [["status", "active"], 7], [["spec", "x"], 1], 3]
    }
    document["metadata"]["annotations"] = {"sluice.dev/before-start": json.dumps(note)}
    fw = framework_of(document)
    assert fw is not None
    left = merged(document, stop_patch(fw, document))
    assert left["metadata"]["labels"] == document["metadata"]["labels"]
    assert "status" not in left
    assert left["spec"] == {**document["spec"], "x": 1}


TEXTS = st.dictionaries(st.sampled_from(["a", "b", "pool", "zone"]), st.sampled_from(["1", "2"]))
TOLERATIONS = st.lists(
    st.sampled_from([TOLERATION, {"key": "gpu", "operator": "Exists"}, {"operator": "Exists"}])
)


@st.composite
def templates(draw: st.DrawFn) -> dict[str, Any]:
    made = pod()
    head: dict[str, Any] = {}
    for key in ("labels", "annotations"):
        if draw(st.booleans()):
            head[key] = draw(TEXTS)
    made["metadata"] = head
    if draw(st.booleans()):
        del made["metadata"]
    if draw(st.booleans()):
        made["spec"]["nodeSelector"] = draw(TEXTS)
    if draw(st.booleans()):
        made["spec"]["tolerations"] = draw(TOLERATIONS)
    return made


@given(
    name=st.sampled_from(sorted(SAMPLES)),
    made=st.lists(templates(), min_size=4, max_size=4),
    added=st.tuples(TEXTS, TEXTS, TEXTS, TOLERATIONS),
    annotations=st.none() | TEXTS,
)
def test_whatever_a_template_has_comes_back(
    name: str,
    made: list[dict[str, Any]],
    added: tuple[dict[str, str], dict[str, str], dict[str, str], list[dict[str, Any]]],
    annotations: dict[str, str] | None,
) -> None:
    document = _with_templates(sample(name), iter(made * 4))
    if annotations is not None:
        document["metadata"]["annotations"] = annotations
    infos = infos_for(
        document,
        labels=added[0],
        annotations=added[1],
        node_selector=added[2],
        tolerations=tuple(added[3]),
    )
    running = None
    with suppress(ManifestError):  # the template has something otherwise
        running = started(document, infos)
    event("started" if running else "refused")
    assert running is None or canonical(stopped(running)) == canonical(document)


def _with_templates(value: Any, made: Any) -> Any:
    """Puts a template in each place of one."""
    if isinstance(value, list):
        return [_with_templates(one, made) for one in value]
    if not isinstance(value, dict):
        return value
    if "containers" in value.get("spec", {}):
        return next(made)
    return {key: _with_templates(one, made) for key, one in value.items()}

"""Documents that are not what their kind says: the reader's error, or an answer; nothing else."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuecontroller.frameworks import (
    PodSetInfo,
    Setting,
    effective_queue,
    finished,
    framework_of,
    frameworks,
    group_of,
    is_active,
    is_managed,
    is_suspended,
    on_create,
    pod_set_infos,
    pod_sets,
    pods_ready,
    prebuilt_of,
    priority_class_of,
    queue_of,
    reclaimable,
    reconcile,
    reconcile_pods,
    role_of,
    runtime_of,
    start_patch,
    stop_patch,
    workload_name,
    workload_of,
)
from queuecontroller.frameworks.patches import difference, merged
from sluicecommon.reader import ManifestError
from tests.queue.frameworks.samples import RUNTIME, SAMPLES, job, pod, sample
from tests.queue.frameworks.spoiling import WRONG, paths, spoilt
from tests.queue.frameworks.world import admitted

PODS_THEMSELVES = {
    "pod": {**job("v1", "Pod", pod()["spec"])},
    "deployment": job("apps/v1", "Deployment", {"replicas": 2, "template": pod()}),
    "statefulset": job("apps/v1", "StatefulSet", {"replicas": 2, "template": pod()}),
    "leaderworkerset.x-k8s.io/leaderworkerset": job(
        "leaderworkerset.x-k8s.io/v1",
        "LeaderWorkerSet",
        {"leaderWorkerTemplate": {"size": 2, "leaderTemplate": pod(), "workerTemplate": pod()}},
    ),
}


FULL_STATUS = {
    "conditions": [{"type": "Failed", "status": "True", "message": "m"}],
    "active": 1,
    "succeeded": 1,
    "ready": 1,
    "phase": "Running",
    "replicatedJobsStatus": [{"name": "workers", "succeeded": 1, "ready": 1, "active": 0}],
    "jobsStatus": [{"name": "node", "succeeded": 1, "ready": 1, "active": 0}],
    "replicaStatuses": {"Worker": {"active": 1}},
    "applicationState": {"state": "RUNNING"},
    "executorState": {"a": "RUNNING"},
    "startTime": "2026-01-01T00:00:00Z",
}


def everything(document: Any, workload: Any, runtime: Any) -> None:
    fw = framework_of(document)
    if fw is None:
        return
    infos = [PodSetInfo(name, count, {"a": "b"}, {}, {"c": "d"}) for name, count in _sets(fw.name)]
    for step in (
        lambda: queue_of(document),
        lambda: effective_queue(fw, document),
        lambda: is_managed(fw, document),
        lambda: is_suspended(fw, document),
        lambda: is_active(fw, document),
        lambda: finished(fw, document),
        lambda: prebuilt_of(document),
        lambda: runtime_of(fw, document),
        lambda: pod_sets(fw, document, runtime),
        lambda: pods_ready(fw, document, runtime),
        lambda: reclaimable(fw, document, runtime),
        lambda: priority_class_of(fw, document, runtime),
        lambda: workload_name(fw, document),
        lambda: workload_of(fw, document, queue="q", runtime=runtime),
        lambda: start_patch(fw, document, infos, runtime),
        lambda: stop_patch(fw, document, workload["spec"]["podSets"], runtime),
        lambda: on_create(fw, document),
        lambda: role_of(document),
        lambda: group_of(document),
    ):
        with suppress(ManifestError):
            step()
    for given_workload in (None, workload):
        reconcile(fw, document, given_workload, Setting(runtime=runtime))
        reconcile_pods([document], given_workload)


def _sets(name: str) -> list[tuple[str, int]]:
    return SAMPLES[name][1] if name in SAMPLES else [("main", 1)]


ALL = {**{name: one[0] for name, one in SAMPLES.items()}, **PODS_THEMSELVES}


def test_every_kind_is_tried() -> None:
    assert set(ALL) == {one.name for one in frameworks()}


def good_workload(name: str) -> dict[str, Any]:
    fw = framework_of(ALL[name])
    assert fw is not None
    made = {**ALL[name], "status": {}}
    return admitted(workload_of(fw, made, queue="q", runtime=RUNTIME))


@settings(max_examples=800)
@given(data=st.data(), name=st.sampled_from(sorted(ALL)), wrong=WRONG)
def test_a_wrong_value_anywhere_in_a_job(data: st.DataObject, name: str, wrong: Any) -> None:
    document: Any = {**ALL[name], "status": FULL_STATUS}
    for _ in range(data.draw(st.integers(1, 3))):
        document = spoilt(document, data.draw(st.sampled_from(paths(document))), wrong)
    everything(document, good_workload(name), RUNTIME)


@settings(max_examples=300)
@given(data=st.data(), wrong=WRONG)
def test_a_wrong_value_anywhere_in_a_runtime(data: st.DataObject, wrong: Any) -> None:
    runtime = spoilt(RUNTIME, data.draw(st.sampled_from(paths(RUNTIME))), wrong)
    everything(
        sample("trainer.kubeflow.org/trainjob"),
        good_workload("trainer.kubeflow.org/trainjob"),
        runtime,
    )


@settings(max_examples=500)
@given(data=st.data(), name=st.sampled_from(sorted(ALL)), wrong=WRONG)
def test_a_wrong_value_anywhere_in_a_workload(data: st.DataObject, name: str, wrong: Any) -> None:
    workload = good_workload(name)
    spoiled: Any = spoilt(workload, data.draw(st.sampled_from(paths(workload))), wrong)
    fw = framework_of(ALL[name])
    assert fw is not None
    reconcile(fw, ALL[name], spoiled, Setting(runtime=RUNTIME))
    reconcile_pods([ALL[name]], spoiled)
    with suppress(ManifestError):
        pod_set_infos(spoiled, {"default": {"spec": wrong}})


NOTES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["spec", "template", "undo", ""]),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["undo", "for"]), inner)
    ),
    max_leaves=20,
)


@given(note=st.text(max_size=50) | NOTES.map(lambda one: json.dumps(one)))
def test_a_note_that_is_nonsense(note: str) -> None:
    document = sample("batch/job")
    document["metadata"]["annotations"] = {"sluice.dev/before-start": note}
    everything(document, good_workload("batch/job"), None)


def test_deeply_nested_wrappers_end() -> None:
    document = sample("workload.codeflare.dev/appwrapper")
    for _ in range(20):
        outer = sample("workload.codeflare.dev/appwrapper")
        outer["spec"]["components"] = [{"template": document}]
        document = outer
    fw = framework_of(document)
    assert fw is not None
    with pytest.raises(ManifestError, match="more than 8 AppWrappers"):
        pod_sets(fw, document)


@pytest.mark.parametrize("name", sorted(ALL))
def test_what_is_nested_without_end_is_refused_or_left_alone(name: str) -> None:
    deep: Any = {}
    for _ in range(20_000):
        deep = {"a": deep}
    document = merged(ALL[name], {})
    for place in paths(document):
        if place[-1] in ("spec", "template", "resources"):
            document = spoilt(document, place, {**_at(document, place), "deep": deep})
            break
    document["spec"]["deep"] = deep
    try:
        everything(document, good_workload(name), RUNTIME)
    finally:  # or Python itself runs out of stack when it lets go of it
        for _ in range(20_000):
            deep = deep.pop("a")


def _at(document: Any, place: tuple[Any, ...]) -> Any:
    for step in place:
        document = document[step]
    return document


JSON = st.recursive(
    st.booleans() | st.integers(0, 3) | st.sampled_from(["a", "b"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner),
    max_leaves=12,
)


@given(
    old=st.dictionaries(st.sampled_from("abc"), JSON),
    new=st.dictionaries(st.sampled_from("abc"), JSON),
)
def test_a_difference_makes_the_one_of_the_other(old: Any, new: Any) -> None:
    patch = difference(old, new)
    assert repr(merged(old, patch)) == repr(merged(merged(old, patch), patch))
    assert _sorted(merged(old, patch)) == _sorted(new)
    assert difference(new, new) == {}


def _sorted(value: Any) -> Any:
    return json.dumps(value, sort_keys=True)

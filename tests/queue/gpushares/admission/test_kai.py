"""KAI's words on pods: each is honoured, or refused by the annotation's name with what to write instead."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuecontroller.gpushares.admission import Rules, admit
from queuecontroller.gpushares.vendors.config import DeviceConfig, Nvidia
from sluicecommon.kai.fractions import FractionError, asking, check_sharing_mode, read_fraction
from sluicecommon.kai.unread import unread_fraction
from sluicecommon.kai.waiting import WaitingError, preemption_delay
from tests.queue.gpushares.admission.pods import limits_of, pod

RULES = Rules(scheduler="sluice-scheduler")
CLAIMS = Rules(claims=True)
GPU, MEM, PCT, CORES = (
    "nvidia.com/gpu",
    "nvidia.com/gpumem",
    "nvidia.com/gpumem-percentage",
    "nvidia.com/gpucores",
)
REQUEST, LIMIT = (
    "nvidia.com/container.c0.gpu-memory.request",
    "nvidia.com/container.c0.gpu-memory.limit",
)
MODE = "kai.scheduler/gpu-compute-sharing-mode"
DELAY = "kai.scheduler/preemption-delay"
PORTION = "kai.scheduler/container.c0.gpu-memory.portion.limit"
OWN = "request.sluice.dev/c0"


def made(
    rules: Rules = RULES,
    containers: int = 1,
    spec: dict[str, Any] | None = None,
    **annotations: str,
) -> Any:
    verdict = admit(rules, pod(*({"cpu": 1},) * containers, spec=spec, **annotations), "user", "t")
    assert not verdict.problems, verdict.problems
    return verdict.pod


def refused(rules: Rules = RULES, containers: int = 1, **annotations: str) -> str:
    problems = admit(rules, pod(*({"cpu": 1},) * containers, **annotations), "user", "t").problems
    assert problems, "it was let in"
    return "; ".join(map(str, problems))


@pytest.mark.parametrize(
    ("annotations", "gets", "guaranteed"),
    [
        ({REQUEST: "2Gi"}, {GPU: "1", MEM: "2048", CORES: "0"}, None),
        ({LIMIT: "4096M"}, {GPU: "1", MEM: "3907", CORES: "0"}, None),
        ({REQUEST: "4Gi", LIMIT: "8Gi"}, {GPU: "1", MEM: "8192", CORES: "0"}, "gpumem=4096"),
        ({REQUEST: "4Gi", LIMIT: "4096Mi"}, {GPU: "1", MEM: "4096", CORES: "0"}, None),
        ({REQUEST: "7680Mi", "gpu-fraction-num-devices": "2"}, {GPU: "2", MEM: "7680", CORES: "0"}, None),
        ({REQUEST: "2000Mi", "gpu-memory": "2000"}, {GPU: "1", MEM: "2000", CORES: "0"}, None),
        ({REQUEST: "1Mi", "gpu-fraction-container-name": "c0"}, {GPU: "1", MEM: "1", CORES: "0"}, None),
        ({"gpu-fraction": "0.5", PORTION: "0.8"}, {GPU: "1", PCT: "80", CORES: "0"}, "gpumem-percentage=50"),
        ({"gpu-fraction": "0.5", PORTION: "0.501"}, {GPU: "1", PCT: "50", CORES: "0"}, None),
        ({"gpu-fraction": "0.5", MODE: "time-slicing"}, {GPU: "1", PCT: "50", CORES: "0"}, None),
        ({REQUEST: "1Gi", "nvidia.com/container.c0.gpu-compute.mode": "time-slicing"}, {GPU: "1", MEM: "1024", CORES: "0"}, None),
        ({"gpu-fraction": "0.5", DELAY: "5m"}, {GPU: "1", PCT: "50", CORES: "0"}, None),
    ],
)  # fmt: skip
def test_what_kai_asks_for_is_given(
    annotations: dict[str, str], gets: dict[str, str], guaranteed: str | None
) -> None:
    after = made(**annotations)
    assert limits_of(after) == {"cpu": 1, **gets}
    assert after["metadata"]["annotations"].get(OWN) == guaranteed
    assert after["spec"]["schedulerName"] == "sluice-scheduler"


def test_the_container_is_the_one_in_the_annotations_name_also_one_that_runs_first() -> None:
    key = "nvidia.com/container.c1.gpu-memory.request"
    after = made(containers=2, **{key: "1Gi"})
    assert limits_of(after) == {"cpu": 1}
    assert limits_of(after, 1)[MEM] == "1024"
    first = {"initContainers": [{"name": "load", "image": "none"}]}
    after = made(spec=first, **{"nvidia.com/container.load.gpu-memory.limit": "1Gi"})
    assert after["spec"]["initContainers"][0]["resources"]["limits"][MEM] == "1024"
    assert limits_of(after) == {"cpu": 1}


def test_units_are_the_clusters() -> None:
    rules = replace(RULES, devices=DeviceConfig(Nvidia(memory_factor=1024)))
    after = made(rules, **{REQUEST: "2Gi", LIMIT: "4Gi"})
    assert limits_of(after)[MEM] == "4"
    assert after["metadata"]["annotations"][OWN] == "gpumem=2"


@pytest.mark.parametrize(
    ("annotations", "why"),
    [
        ({REQUEST: "8Gi", LIMIT: "4Gi"}, f"{REQUEST}: 8192 MiB are more than the limit of 4096 MiB"),
        ({REQUEST: "4096"}, f"{REQUEST}: expected an amount of 1Mi or more, such as 4Gi, got '4096'"),
        ({REQUEST: "-1Gi"}, "got '-1Gi'"),
        ({REQUEST: "lots"}, "got 'lots'"),
        ({REQUEST: "1e300"}, "got '1e300'"),
        ({REQUEST: "9" * 300}, "expected an amount"),
        ({"nvidia.com/container.c9.gpu-memory.limit": "1Gi"}, "container.c9.gpu-memory.limit: must be one of c0, got 'c9'"),
        ({REQUEST: "1Gi", "nvidia.com/container.c1.gpu-memory.limit": "1Gi"}, "container.c1.gpu-memory.limit: one container of a pod"),
        ({REQUEST: "1Gi", "gpu-fraction": "0.5"}, "gpu-fraction: is given together with nvidia.com/container.c0"),
        ({REQUEST: "1Gi", "gpu-memory": "1000"}, "gpu-memory: '1000' is another amount than the 1024 MiB"),
        ({REQUEST: "1Gi", "gpu-fraction-container-name": "c1"}, "'c1' is another container"),
        ({REQUEST: "1Gi", "gpu-fraction-num-devices": "65"}, "gpu-fraction-num-devices: expected a whole number from 1 to 64, got '65'"),
        ({"nvidia.com/container.c0.gpu-compute.request": "0.5"}, "gpu-compute.request: is unknown here: write nvidia.com/container.NAME."),
        ({"nvidia.com/container.c0": "1Gi"}, "nvidia.com/container.c0: is unknown here"),
        ({PORTION: "0.8"}, f"{PORTION}: means nothing without gpu-fraction"),
        ({"gpu-fraction": "0.5", PORTION: "0.4"}, f"{PORTION}: must be above gpu-fraction 0.5"),
        ({"gpu-fraction": "0.5", PORTION.replace("c0", "c1"): "0.8"}, "c1.gpu-memory.portion.limit: must name container c0"),
        ({"gpu-fraction": "0.5", MODE: "sm-sharing"}, f"{MODE}: sm-sharing runs kernels of several pods at once by NVIDIA's MPS"),
        ({"gpu-fraction": "0.5", MODE: "fast"}, f"{MODE}: must be time-slicing, got 'fast'"),
        ({REQUEST: "1Gi", "nvidia.com/container.c0.gpu-compute.mode": ""}, "gpu-compute.mode: must be time-slicing, got ''"),
        ({"gpu-fraction": "0.5", DELAY: "300"}, f"{DELAY}: expected a duration from 0s to 168h, such as 5m, got '300'"),
        ({"gpu-fraction": "0.5", DELAY: "-5m"}, "got '-5m'"),
        ({"gpu-fraction": "0.5", DELAY: "169h"}, "got '169h'"),
        ({REQUEST: "2Gi", LIMIT: "4Gi", OWN: "gpumem=1"}, f"{OWN}: 'gpumem=1' is another amount than {REQUEST} has"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused_by_its_name(annotations: dict[str, str], why: str) -> None:
    assert why in refused(containers=2 if "c1" in why else 1, **annotations)


def test_kais_binder_writes_no_pods_here() -> None:
    assert "only the scheduler may write it" in refused(
        **{"nvidia.com/container.c0.gpus.devices": "GPU-0"}
    )


def test_a_queued_pod_has_no_delay_of_its_own() -> None:
    for label in ("kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/podset"):
        document = pod({GPU: 1}, **{DELAY: "5m"})
        document["metadata"]["labels"] = {label: "a"}
        (problem,) = admit(RULES, document, "u", "t").problems
        assert DELAY in str(problem)
        assert "preempts by the rules of its ClusterQueue" in str(problem)


@pytest.mark.parametrize(
    ("annotations", "why"),
    [
        ({"gpu-fraction": "0.5"}, "gpu-fraction: a claim has no part of a card"),
        ({REQUEST: "1Gi", LIMIT: "2Gi"}, f"{REQUEST}: a claim guarantees all of its memory"),
        (
            {"gpu-memory": "2000", DELAY: "5m"},
            f"{DELAY}: kube-scheduler preempts for claims without a delay",
        ),
    ],
)
def test_what_a_claim_cannot_say_is_refused(annotations: dict[str, str], why: str) -> None:
    assert why in refused(CLAIMS, **annotations)
    after = made(CLAIMS, **{"gpu-memory": "2000"})
    assert (
        after["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] == "sluice-share-1-2000mi-0"
    )


def test_other_words_of_kais_are_neither_misspellings_nor_requests() -> None:
    others = {
        "kai.scheduler/preemptibility": "x",
        "kai.scheduler/topology": "y",
        "nvidia.com/container-image": "z",
    }
    verdict = admit(RULES, pod({GPU: 1}, **others), "u", "t")
    assert (verdict.problems, verdict.warnings) == ((), ())


@pytest.mark.parametrize(
    ("annotations", "says"),
    [
        ({"gpu-fraction": "0.5"}, ["gpu-fraction: no effect on this pod", f"{GPU}: 1 and {PCT}: 50", "of main"]),
        ({"gpu-memory": "2000", "gpu-fraction-num-devices": "3"}, ["nvidia.com/gpu: 3 and nvidia.com/gpumem: 2000"]),
        (
            {REQUEST.replace("c0", "main"): "1Gi", LIMIT.replace("c0", "main"): "2Gi"},
            [f"{MEM}: 2048", 'request.sluice.dev/main: "gpumem=1024"'],
        ),
        ({"gpu-fraction": "2"}, ["gpu-fraction: expected a number"]),
    ],
)  # fmt: skip
def test_where_nothing_reads_them_the_reason_says_what_to_write(
    annotations: dict[str, str], says: list[str]
) -> None:
    text = unread_fraction(annotations, ["main"]).replace("container main", "main")
    for one in says:
        assert one in text
    assert unread_fraction({}, ["main"]) == ""
    assert unread_fraction(annotations).partition(":")[0] == text.partition(":")[0]


KEYS = st.sampled_from(
    ["gpu-fraction", "gpu-memory", "gpu-fraction-num-devices", "gpu-fraction-container-name", REQUEST, LIMIT, PORTION, MODE, DELAY,
     "nvidia.com/container.", "nvidia.com/container.c0.", "kai.scheduler/container.x.y"]
)  # fmt: skip
VALUES = st.one_of(
    st.text(max_size=40),
    st.sampled_from(["0.5", "1Gi", "2", "c0", "time-slicing", "5m", "1e999", "-0"]),
)


@given(st.dictionaries(KEYS, VALUES, max_size=6))
def test_whatever_is_written_is_read_or_refused_by_a_name_that_is_there(
    annotations: dict[str, str],
) -> None:
    try:
        found = read_fraction(annotations, ["c0", "c1"])
        check_sharing_mode(annotations)
        preemption_delay(annotations, {})
    except (FractionError, WaitingError) as error:
        named = any(str(error).startswith(key) for key in annotations)
        assert named, error  # noqa: PT017
        return
    assert (found is not None) == bool(asking(annotations))
    if found is not None:
        assert found.container in ("c0", "c1")
        assert (found.mib or found.percent or 0) > 0
        assert found.guaranteed is None or 0 < found.guaranteed < (found.mib or found.percent or 0)

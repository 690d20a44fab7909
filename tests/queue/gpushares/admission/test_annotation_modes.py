"""The table of annotations and modes in docs/pods.md is what the code does."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from nodeagent.core.kubelet.pod_documents import read_pod as read_facts
from nodeagent.core.kubelet.pod_limits import DefaultLimits, limits_from_requests
from nodeagent.ports.kubelet import ContainerRequests, PodIdentity
from nodeagent.shell.pods.deviceplugin.starting import unheeded
from nodeagent.shell.pods.foreign_words import ignored
from nodeagent.units import PodUid
from queuecontroller.gpushares.admission import Rules, admit
from queuecontroller.gpushares.admission.names import names_of
from queuecontroller.gpushares.extender.pods import read_pod
from queuecontroller.gpushares.vendors.config import DeviceConfig
from queuecontroller.scheduler.model.objects import PodSet
from queuecontroller.scheduler.placement.request import AskError
from queuecontroller.state.objects.asks import ask_of, request_of
from sluicecommon.hami.names import CHOOSING, ResourceNames
from sluicecommon.pod_annotations import SHARE_POLICY
from tests.kit.places import REPO

VALUES = {
    "nvidia.com/use-gputype": "A100",
    "nvidia.com/nouse-gputype": "A100",
    "nvidia.com/use-gpuuuid": "GPU-a",
    "nvidia.com/nouse-gpuuuid": "GPU-a",
    "nvidia.com/use-gpuindexes": "0",
    "nvidia.com/nouse-gpuindexes": "0",
    "nvidia.com/numa-bind": "true",
    "nvidia.com/vgpu-mode": "hami-core,mig",
    "hami.io/node-scheduler-policy": "spread",
    "hami.io/gpu-scheduler-policy": "spread",
    "hami.io/device-scoring-weights": "slot=1,core=1,memory=3",
    SHARE_POLICY: "elastic",
}
RESOURCES = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1000, "nvidia.com/gpucores": 30}


def table(
    start: str = "What a choosing annotation does", end: str = "\n\nSluice writes"
) -> dict[str, list[str]]:
    text = (REPO / "docs" / "pods.md").read_text()
    rows = text.partition(start)[2].partition(end)[0]
    found = {}
    for line in rows.splitlines():
        name = re.match(r"\| `([^`]+)`[^|]* \|", line)
        if name is not None:
            found[name[1]] = [one.strip() for one in line.strip("|").split("|")[1:]]
    return found


def pod(annotations: dict[str, str]) -> dict[str, Any]:
    limits = {name: str(amount) for name, amount in RESOURCES.items()}
    head = {"name": "p", "namespace": "t", "uid": "u", "annotations": annotations}
    container = {"name": "main", "image": "none", "resources": {"limits": limits}}
    return {"metadata": head, "spec": {"containers": [container]}, "status": {}}


def by_the_extender(given: dict[str, str]) -> str:
    plain, asked = read_pod(pod({})), read_pod(pod(given))
    assert not asked.wrong
    changed = replace(asked, node_policy="") != replace(plain, node_policy="")
    return "honoured" if changed or asked.node_policy else "nothing"


def as_a_claim(given: dict[str, str]) -> str:
    rules = Rules(DeviceConfig(), claims=True)
    assert not admit(rules, pod({}), "u", "t").problems
    problems = admit(rules, pod(given), "u", "t").problems
    return "refused" if any(next(iter(given)) in str(one) for one in problems) else "nothing"


def by_the_queue(given: dict[str, str]) -> str:
    def request(annotations: dict[str, str]) -> Any:
        mine = PodSet("main", 1, {}, containers=(RESOURCES,), annotations=annotations)
        ask = ask_of(mine)
        assert ask is not None
        return request_of(ask, annotations)

    return "honoured" if request(given) != request({}) else "nothing"


def by_the_node(given: dict[str, str]) -> str:
    asked = ContainerRequests(PodIdentity(PodUid("u")), (), (), tuple(given.items()))
    if unheeded(asked):
        return "event"
    resources = {name: str(amount) for name, amount in RESOURCES.items()}
    names, defaults = ResourceNames(), DefaultLimits()
    plain, changed = (
        limits_from_requests(resources, 1, names, defaults, one) for one in ({}, given)
    )
    return "honoured" if plain != changed else "nothing"


@pytest.mark.parametrize("name", [*CHOOSING, SHARE_POLICY])
def test_each_annotation_does_what_the_table_says(name: str) -> None:
    given = {name: VALUES[name]}
    found = [one(given) for one in (by_the_extender, as_a_claim, by_the_queue, by_the_node)]
    assert table()[name] == found


def test_the_table_has_every_choosing_annotation() -> None:
    known = names_of(DeviceConfig()).asked["nvidia.com"]
    assert known <= {*CHOOSING}
    assert {*CHOOSING, SHARE_POLICY} == table().keys() == VALUES.keys()


KAI = {
    "gpu-fraction": {"gpu-fraction": "0.5"},
    "gpu-memory": {"gpu-memory": "1000"},
    "gpu-fraction-num-devices": {"gpu-fraction-num-devices": "2", "gpu-memory": "1000"},
    "nvidia.com/container.NAME.gpu-memory.request": {
        "nvidia.com/container.main.gpu-memory.request": "1Gi"
    },
    "nvidia.com/container.NAME.gpu-memory.limit": {
        "nvidia.com/container.main.gpu-memory.limit": "2Gi",
        "nvidia.com/container.main.gpu-memory.request": "1Gi",
    },
    "kai.scheduler/container.NAME.gpu-memory.portion.limit": {
        "kai.scheduler/container.main.gpu-memory.portion.limit": "0.8",
        "gpu-fraction": "0.5",
    },
    "kai.scheduler/preemption-delay": {"kai.scheduler/preemption-delay": "5m"},
    "kai.scheduler/gpu-compute-sharing-mode: sm-sharing": {
        "kai.scheduler/gpu-compute-sharing-mode": "sm-sharing"
    },
    "nvidia.com/container.NAME.gpus.devices": {"nvidia.com/container.main.gpus.devices": "GPU-0"},
}
"""Annotations of a pod by the row of the table, the row's own first."""


def of_kai(given: dict[str, str]) -> dict[str, Any]:
    """A pod that has GPUs only by KAI's annotations, if it has such."""
    document = pod(given)
    if any(
        key != "nvidia.com/container.main.gpus.devices" and "gpu-" in key.replace("gpu-compute", "")
        for key in given
    ):
        document["spec"]["containers"][0]["resources"] = {}
    return document


def by_the_webhook(given: dict[str, str], rules: Rules) -> str:
    verdict = admit(rules, of_kai(given), "u", "t")
    if verdict.problems:
        text = "; ".join(map(str, verdict.problems))
        return "refused" if any(key in text for key in given) else "nothing"
    asked = read_pod(
        {
            **verdict.pod,
            "metadata": {**verdict.pod["metadata"], "creationTimestamp": "2026-01-01T00:00:00Z"},
        }
    )
    has = asked.containers or verdict.pod["spec"].get("resourceClaims")
    return (
        "honoured"
        if has and (asked.displaces_after_s or "kai.scheduler/preemption-delay" not in given)
        else "nothing"
    )


def by_a_queue_without_a_webhook(given: dict[str, str]) -> str:
    containers = (RESOURCES,) if of_kai(given)["spec"]["containers"][0]["resources"] else ({},)
    try:
        ask_of(PodSet("main", 1, {}, containers=containers, annotations=given))
    except AskError as error:
        return "refused" if any(key in str(error) for key in given) else "nothing"
    return "not read"


def by_a_node_without_a_webhook(given: dict[str, str]) -> str:
    texts = ignored(read_facts(of_kai(given)), "nvidia.com/gpu")
    if not texts:
        return "not read"
    return "event" if any(key in one for key in given for one in texts) else "nothing"


@pytest.mark.parametrize("row", KAI)
def test_each_of_kais_does_what_its_table_says(row: str) -> None:
    given, rules = KAI[row], Rules(DeviceConfig())
    found = [by_the_webhook(given, one) for one in (rules, replace(rules, claims=True))]
    found += [by_a_queue_without_a_webhook(given), by_a_node_without_a_webhook(given)]
    assert table("What KAI's do, by the mode", "\n\nRefused as well")[row] == found


def test_the_table_has_every_one_of_kais() -> None:
    assert table("What KAI's do, by the mode", "\n\nRefused as well").keys() == KAI.keys()

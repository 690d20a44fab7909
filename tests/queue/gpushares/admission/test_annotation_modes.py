"""The table of annotations and modes in docs/pods.md is what the code does."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from nodeagent.core.kubelet.pod_limits import DefaultLimits, limits_from_requests
from nodeagent.ports.kubelet import ContainerRequests, PodIdentity
from nodeagent.shell.pods.deviceplugin.starting import unheeded
from nodeagent.units import PodUid
from queuecontroller.gpushares.admission import Rules, admit
from queuecontroller.gpushares.admission.names import names_of
from queuecontroller.gpushares.extender.pods import read_pod
from queuecontroller.gpushares.vendors.config import DeviceConfig
from queuecontroller.scheduler.model.objects import PodSet
from queuecontroller.state.objects.asks import ask_of, request_of
from sluicecommon.hami.names import CHOOSING, ResourceNames
from sluicecommon.share_policy import ANNOTATION as SHARE_POLICY
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


def table() -> dict[str, list[str]]:
    text = (REPO / "docs" / "pods.md").read_text()
    rows = text.partition("What a choosing annotation does")[2].partition("\n\nSluice writes")[0]
    found = {}
    for line in rows.splitlines():
        name = re.match(r"\| `([^`]+)` \|", line)
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

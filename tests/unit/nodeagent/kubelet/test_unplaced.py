"""Annotations by which a scheduler chooses GPUs have no effect on a pod that none has placed: its
event names them."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any, cast

import pytest

from nodeagent.core.kubelet.identity import Holder
from nodeagent.core.kubelet.pod_limits import DefaultLimits
from nodeagent.ports.clock import Clock
from nodeagent.ports.kubelet import (
    Claim,
    ContainerRequests,
    KubeletRecords,
    Nonce,
    PodIdentity,
    PodSource,
    RequestsUnknown,
)
from nodeagent.shell.pods.deviceplugin.starting import KubeletFigures, Starting, unheeded
from nodeagent.shell.pods.limits import PlacedLimits, PodLimits
from nodeagent.units import PodUid
from sluicecommon.background import BackgroundTasks
from sluicecommon.hami.names import CHOOSING, ResourceNames
from sluicecommon.pod_annotations import PLACEMENT

POD = PodIdentity(PodUid("u1"), "team-a", "p")
GPU = "GPU-00000000-0000-0000-0000-000000000000"
PLACED = json.dumps({"node": "n", "containers": {"main": [{"uuid": GPU}]}})


class Time:
    def monotonic_ns(self) -> int:
        return time.monotonic_ns()


class Pods:
    def __init__(self, annotations: dict[str, str]) -> None:
        self.annotations = annotations

    async def requests(self, pod: PodIdentity, container: str) -> ContainerRequests:
        return ContainerRequests(POD, (), (), tuple(self.annotations.items()))


def told(annotations: dict[str, str], starts: int = 1) -> list[tuple[str, str]]:
    async def run() -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []

        async def tell(pod: PodIdentity, names: str) -> None:
            found.append((str(pod), names))

        names, defaults = ResourceNames(), DefaultLimits()
        sources = [PlacedLimits(names, defaults), PodLimits(names, defaults)]
        background = BackgroundTasks()
        starting = Starting(
            cast(KubeletRecords, None),
            cast(PodSource, Pods(annotations)),
            sources,
            KubeletFigures(),
            cast(Clock, Time()),
            background,
        )
        starting.on_unplaced.append(tell)
        holder = Holder(POD, (Claim(Nonce("0" * 32), "main"),))
        for _ in range(starts):
            await starting.limits(holder, frozenset([f"{GPU}::0"]))
        await asyncio.sleep(0)
        await background.close()
        return found

    return asyncio.run(run())


def test_a_pod_that_no_scheduler_placed_is_told_once_what_has_no_effect() -> None:
    given = {"nvidia.com/use-gputype": "A100", "nvidia.com/nouse-gpuuuid": "GPU-x", "a/b": "c"}
    names = "nvidia.com/use-gputype, nvidia.com/nouse-gpuuuid"
    assert told(given, starts=3) == [("team-a/p", names)]


@pytest.mark.parametrize("name", CHOOSING)
def test_each_of_them_is_told_of(name: str) -> None:
    assert told({name: "x"}) == [("team-a/p", name)]


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"nvidia.com/use-gputype": " "},
        {"nvidia.com/vgpu-mode": "hami-core"},
        {"nvidia.com/numa-bind": "false"},
        {"nvidia.com/use-gputype": "A100", PLACEMENT: PLACED},
    ],
    ids=["none", "empty", "the node's mode", "no binding", "placed"],
)
def test_what_has_its_effect_is_not_told_of(given: dict[str, str]) -> None:
    assert told(given) == []


def test_a_check_beside_kueue_has_honoured_them() -> None:
    labels: Any = (("sluice.dev/placed-for", "u"),)
    annotations = (("nvidia.com/use-gpuuuid", GPU),)
    assert unheeded(ContainerRequests(POD, (), labels, annotations)) == ()
    assert unheeded(ContainerRequests(POD, (), (), annotations)) == ("nvidia.com/use-gpuuuid",)
    assert unheeded(RequestsUnknown("away")) == ()

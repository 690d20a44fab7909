"""A pod's placement: the GPUs are the annotation's, all else is the pod's own."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from nodeagent.core.kubelet.placed import placed_gpus
from nodeagent.core.kubelet.pod_limits import DefaultLimits
from nodeagent.ports.clients import MemoryAsk
from nodeagent.ports.kubelet import (
    ContainerLimits,
    ContainerRequests,
    PermanentError,
    PodIdentity,
    RequestsUnknown,
    RetryLater,
)
from nodeagent.shell.pods.limits import PlacedLimits
from nodeagent.units import MIB, Bytes, PodUid, SharePolicy
from sluicecommon.hami.names import ResourceNames
from sluicecommon.pod_annotations import PLACEMENT, SHARE_POLICY

POD = PodIdentity(PodUid("u1"), "team-a", "p")
ASKED = (("nvidia.com/gpucores", "30"), ("nvidia.com/gpumem", "8000"))


def limits(
    annotation: Any, gpus: int = 1, container: str = "main", requests: Any = None
) -> ContainerLimits | None:
    text = annotation if isinstance(annotation, str) else json.dumps(annotation)
    annotations = ((PLACEMENT, text),) if annotation is not None else ()
    asked = requests or ContainerRequests(POD, ASKED, (), annotations)
    source = PlacedLimits(ResourceNames(), DefaultLimits())
    return asyncio.run(source.limits(POD, container, asked, gpus))


def placed(*uuids: str, **more: Any) -> dict[str, Any]:
    shares = [{"uuid": one, "memory_bytes": 1 << 40, "share_ppm": 1_000_000} for one in uuids]
    return {"node": "n1", "containers": {"main": shares, **more}}


def test_it_is_given_the_named_gpus_and_what_the_pod_asked_for_of_them() -> None:
    found = limits(placed("GPU-b", "GPU-a"), gpus=2)
    assert found is not None
    assert (found.source, found.ask.gpu_uuids) == ("placement", ("GPU-b", "GPU-a"))
    assert found.ask.memory == MemoryAsk(amount_bytes=Bytes(8000 * MIB)), "not what was written"
    assert (found.ask.share_ppm, found.ask.policy) == (300_000, SharePolicy.HARD)


def test_the_policy_that_a_placed_pod_names_is_its_grants() -> None:
    annotations = ((PLACEMENT, json.dumps(placed("GPU-a"))), (SHARE_POLICY, "elastic"))
    found = limits(None, requests=ContainerRequests(POD, ASKED, (), annotations))
    assert found is not None
    assert (found.source, found.ask.gpu_uuids) == ("placement", ("GPU-a",))
    assert (found.ask.share_ppm, found.ask.policy) == (300_000, SharePolicy.ELASTIC)


@pytest.mark.parametrize("annotation", [None, placed(), {"containers": {"side": []}}])
def test_who_was_not_placed_is_for_the_next_source(annotation: Any) -> None:
    assert limits(annotation) is None


@pytest.mark.parametrize(
    "annotation",
    [
        "{", "[]", '{"containers": []}', '{"containers": {"main": {}}}', "[" * 70_000,
        '{"containers": {"main": [{"uuid": 7}]}}', '{"containers": {"main": [{"uuid": ""}]}}',
        '{"containers": {"main": [{"uuid": "a\\nb"}]}}', '{"containers": {"main": [1]}}',
        {"containers": {"main": [{"uuid": "GPU-a"}] * 65}},
    ],
)  # fmt: skip
def test_what_we_would_not_have_written_is_refused(annotation: Any) -> None:
    with pytest.raises(PermanentError, match=r"sluice\.dev/placement"):
        limits(annotation)
    with pytest.raises(ValueError):
        placed_gpus(annotation if isinstance(annotation, str) else json.dumps(annotation), "main")


def test_other_gpus_than_the_kubelet_counts_are_refused() -> None:
    with pytest.raises(PermanentError, match="placed on 2 GPUs, the kubelet counts 1"):
        limits(placed("GPU-a", "GPU-b"))


def test_a_pod_of_which_nobody_can_tell_waits() -> None:
    with pytest.raises(RetryLater, match="the API server is away"):
        limits(None, requests=RequestsUnknown("the API server is away"))

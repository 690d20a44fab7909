"""Requests and names from a kubelet, or from a process in its place."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.kit.fakes.kubelet import AdmissionError, Container, Pod, StartError
from tests.kit.node import until
from tests.kit.pods import pod_node
from tests.kubelet.place import RESOURCE, Place, limits, with_place


async def raw(place: Place, *requests: list[str]) -> list[bytes]:
    """Allocate over the socket, as any process that can open it may call it."""
    wire = place.kubelet.wire
    asks = [wire.plugin("ContainerAllocateRequest")(devices_ids=ids) for ids in requests]
    call = place.kubelet._call(place.kubelet.endpoints[RESOURCE], "Allocate")
    answer = await call(wire.plugin("AllocateRequest")(container_requests=asks))
    return [one.SerializeToString() for one in answer.container_responses]


@with_place(gpus=2, slots=10)
async def test_e2_the_same_allocate_again_and_at_once_is_answered_the_same(place: Place) -> None:
    """The answers name the same devices: a kubelet that repeats a request has forgotten the first
    answer."""
    pod = Pod("trainer", (Container("main", limits=limits(gpumem=1024)),))
    await place.kubelet.admit(pod, RESOURCE)
    ids = list(place.kubelet.device_ids(pod.uid))
    one_by_one = [(await raw(place, ids))[0] for _ in range(100)]
    at_once = [
        answers[0] for answers in await asyncio.gather(*(raw(place, ids) for _ in range(32)))
    ]
    assert len({plain(place, answer) for answer in one_by_one + at_once}) == 1
    assert place.daemon is not None
    assert len(place.daemon.keeper.live()) <= 1
    first = place.cdi_of(await place.kubelet.start_container(pod.uid, "main"))
    assert place.cdi_of(await place.kubelet.start_container(pod.uid, "main")) == first
    assert len(place.daemon.keeper.live()) == 1, "one grant, however often it was asked"
    total = sum(
        device.memory_bytes
        for held in place.daemon.keeper.live().values()
        for device in held.record.devices
    )
    assert total == 1024 << 20
    # What no container took is forgotten, and the room is free.
    place.kubelet.end(pod.uid)
    for _ in range(3):
        await place.daemon.look()
    assert place.daemon.keeper.live() == {}


def plain(place: Place, answer: bytes) -> str:
    """Text of an answer without the name that is new each time, which leads the runtime to this
    answer's own file."""
    message = place.kubelet.wire.plugin("ContainerAllocateResponse").FromString(answer)
    kinds = sorted(device.name.partition("=")[0] for device in message.cdi_devices)
    others = sorted((key, "") for key in message.envs)
    return repr((kinds, others, len(message.mounts), len(message.devices)))


UUID = "GPU-00000000-0000-0000-0000-000000000000"


@pytest.mark.parametrize(
    "ids",
    [
        [],
        ["sda"],
        ["x" * (1 << 20)],
        [f"{UUID}::{n}" for n in range(100_000)],
        ["../../etc/passwd"],
        ["a\0b"],
        ["-rf"],
        ["\U0001f4a9" * 1000],
        [""],
    ],
    ids=["none", "unknown", "1 MiB", "100,000", "a way out", "NUL", "a flag", "unicode", "empty"],
)
def test_e3_ids_that_are_none_of_ours_are_refused(ids: list[str]) -> None:
    @with_place(gpus=1, slots=4)
    async def run(place: Place) -> None:
        with pytest.raises((grpc.RpcError, ValueError)) as caught:
            await raw(place, ids)
        if isinstance(caught.value, grpc.RpcError):
            assert caught.value.code() in (
                grpc.StatusCode.INVALID_ARGUMENT,
                grpc.StatusCode.RESOURCE_EXHAUSTED,
            )
        assert place.daemon is not None
        assert place.daemon.rows() == []
        assert place.daemon.errors == []
        await place.run(Pod("after", (Container("main", limits=limits(gpumem=512)),)))

    run()


@with_place(gpus=1, slots=4)
async def test_e3_one_device_twice_is_no_two(place: Place) -> None:
    (endpoint,) = place.kubelet.endpoints.values()
    one = sorted(endpoint.devices)[0]
    try:
        await raw(place, [one, one])
    except grpc.RpcError as error:
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT  # noqa: PT017  # either is right
    assert place.daemon is not None
    assert {row.device_ids for row in place.daemon.rows()} <= {frozenset({one})}


NAMES = {
    "a way out": "../../etc",
    "a newline": "a\nLD_PRELOAD=/evil.so",
    "a flag": "-rf",
    "4 KiB": "n" * 4096,
    "unicode": "\u202ename\u0301",
    "an escape": "\x1b[31mred",
    "blanks": " a b ",
    "percent": "%s%n{}",
}


@pytest.mark.parametrize("field", ["name", "uid", "namespace"])
@pytest.mark.parametrize("odd", NAMES.values(), ids=NAMES.keys())
def test_e7_odd_names_of_pods_lead_nowhere(field: str, odd: str, caplog: Any) -> None:
    """No kubelet has such pods; a process that calls in its place could send them. The container is refused or gets a grant; no file
    is made outside, and no line of the log is broken."""

    @with_place(gpus=1, slots=4)
    async def run(place: Place) -> None:
        pod = replace(
            Pod("trainer", (Container("main", limits=limits(gpumem=512)),)), **{field: odd}
        )
        before = outside(place.directory)
        with contextlib.suppress(AdmissionError, StartError, ValueError):
            await place.run(pod)
        assert outside(place.directory) == before
        assert place.daemon is not None
        assert place.daemon.errors == []
        for held in place.daemon.keeper.live().values():
            assert len(held.record.name) <= 512
        inside = [path for path in place.directory.rglob("*") if odd in path.name]
        assert inside == [], "a pod's name is no name of a file"
        after = Pod("after", (Container("main", limits=limits(gpumem=512)),))
        await place.run(after)

    run()


def outside(directory: Path) -> list[str]:
    return sorted(os.listdir(directory.parent / "..")) + sorted(os.listdir("/etc"))


@pytest.mark.faults
@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")
@pytest.mark.parametrize("starts", [3, pytest.param(60, marks=pytest.mark.faults)])
def test_e6_a_container_that_starts_again_and_again_leaves_nothing(
    tmp_path_factory: pytest.TempPathFactory, starts: int
) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="sl-", dir="/tmp") as directory,
        pod_node(Path(directory)) as made,
    ):
        uid = made.kubelet.admit("again", gpumem=1024, gpucores=10)
        made.kubelet.cdi_devices(uid)
        (first,) = made.node.grants()
        mounts = own_mounts(directory)
        files = sorted(path.name for path in made.cdi_dir.iterdir())
        for _ in range(starts):
            made.kubelet.cdi_devices(uid)
        (now,) = made.node.grants()
        assert now["grant"] == first["grant"]
        assert now["devices"][0]["memory_used_bytes"] == 0
        assert own_mounts(directory) == mounts
        assert sorted(path.name for path in made.cdi_dir.iterdir()) == files
        made.kubelet.do("end", uid=uid)
        until("all is given back", lambda: not made.node.grants(), 60)
        assert own_mounts(directory) < mounts


def own_mounts(directory: str) -> int:
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return sum(line.split()[1].startswith(f"{directory}/") for line in lines)

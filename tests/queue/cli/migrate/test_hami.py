"""Imported HAMi annotations, and the parts of them that cannot be granted here."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuecontroller.cli.migrate.hami import Grant, look, registered


def node(name: str = "n1", **more: Any) -> dict[str, Any]:
    gpu = {"id": "GPU-1", "index": 0, "count": 10, "devmem": 81920, "devcore": 100, "type": "NVIDIA-H100", "mode": "hami-core", "health": True}  # fmt: skip
    text = json.dumps([{**gpu, **more}])
    return {"metadata": {"name": name, "annotations": {"hami.io/node-nvidia-register": text}}}


def pod(name: str, given: str, containers: tuple[str, ...] = ("main",), **head: str) -> Any:
    return {
        "metadata": {
            "namespace": "n",
            "name": name,
            "annotations": {"hami.io/vgpu-devices-allocated": given, **head},
        },
        "spec": {"nodeName": "n1", "containers": [{"name": one} for one in containers]},
        "status": {"phase": "Running"},
    }


def test_each_container_has_its_part() -> None:
    found = look(
        [node()],
        [
            pod("a", "GPU-1,NVIDIA,8000,30:;", ("main",)),
            pod("b", ";GPU-1,NVIDIA,4000,0:;", ("side", "main")),
        ],
    )
    assert found.grants == (
        Grant("n/a", "main", "n1", "GPU-1", 8000, 30),
        Grant("n/b", "main", "n1", "GPU-1", 4000, 0),
    )
    assert (found.refused, found.notes) == ((), ())


def test_the_older_form_of_a_node_reads_the_same() -> None:
    (old,) = registered("n1", "GPU-1,10,81920,100,NVIDIA-H100,0,true:")
    text = node()["metadata"]["annotations"]["hami.io/node-nvidia-register"]
    assert [old] == registered("n1", text)


def test_pods_that_are_over_hold_nothing() -> None:
    done = pod("a", "GPU-1,NVIDIA,8000,30:;")
    done["status"]["phase"] = "Succeeded"
    assert look([node()], [done]).grants == ()


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("GPU-2,NVIDIA,1,1:;", "Pod/n/p: main: no node registers GPU GPU-2"),
        ("GPU-1,DCU,1,1:;", "Pod/n/p: hami.io/vgpu-devices-allocated: 'DCU': only NVIDIA GPUs are supported"),
        ("GPU-1,NVIDIA,many,1:;", "Pod/n/p: hami.io/vgpu-devices-allocated: expected a whole number, got 'many'"),
        ("GPU-1,NVIDIA:;", "Pod/n/p: hami.io/vgpu-devices-allocated: 'GPU-1,NVIDIA' is not UUID,TYPE,MIB,CORES"),
        (";;GPU-1,NVIDIA,1,1:;", "Pod/n/p: hami.io/vgpu-devices-allocated: has more containers than the pod"),
        ("GPU-1,NVIDIA,90000,10:;", "GPU GPU-1 of n1: 90000 MiB are allocated of 81920: Sluice does not overcommit memory"),
        ("GPU-1,NVIDIA,10,60:GPU-1,NVIDIA,10,60:;", "GPU GPU-1 of n1: 120 % of its time are allocated: request less, or no guaranteed share (sluice.dev/share-policy: elastic)"),
    ],
)  # fmt: skip
def test_what_cannot_be_granted_is_named(given: str, why: str) -> None:
    assert look([node()], [pod("p", given)]).refused == (why,)


def test_mig_instances_of_its_making_stay_its_own() -> None:
    mig = pod("p", "GPU-1,NVIDIA,10240,14:;", **{"hami.io/vgpu-mig-allocations": "[]"})
    (why,) = look([node()], [mig]).refused
    assert why == (
        "Pod/n/p: hami.io/vgpu-mig-allocations: its MIG instance was created by HAMi: let it finish"
    )


def test_what_is_otherwise_here_is_noted() -> None:
    (note,) = look([node(devcore=150)], []).notes
    assert note == "GPU GPU-1 of n1: HAMi offers 150 % of its time, Sluice 100 %"
    (note,) = look([node(mode="mps")], []).notes
    assert note == "GPU GPU-1 of n1: MPS is not supported; it would be shared by time"


@given(st.text(max_size=200))
def test_whatever_stands_there_is_read_or_refused(text: str) -> None:
    head = {"name": "n1", "annotations": {"hami.io/node-nvidia-register": text}}
    found = look([{"metadata": head}], [pod("p", text)])
    grants = [one for one in found.grants if one.uuid not in {gpu.uuid for gpu in found.gpus}]
    assert len(found.refused) >= len(grants), "what no node has is named"

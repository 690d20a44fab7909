"""What other people's tools read: as HAMi's own programs would have written it."""

from __future__ import annotations

import json

from queuecontroller.placement.capacity import GpuCapacity
from queuecontroller.placement.stock import Share
from queuecontroller.shares.facts import allocation, register, scores
from queuecontroller.vendors.devices import decode, read_register

GIB = 1 << 30
GPUS = (
    GpuCapacity("GPU-a", 0, "NVIDIA H100 80GB HBM3", 80 * GIB, numa_node=0, nvlinks={"GPU-b": 4}),
    GpuCapacity("GPU-b", 1, "Tesla T4", 16 * GIB, slots=4, numa_node=1, health="lost"),
    GpuCapacity("MIG-c", 0, "NVIDIA H100", 10 * GIB, parent_uuid="GPU-a"),
)


def test_a_nodes_cards_are_registered_as_hami_does() -> None:
    entries = json.loads(register(GPUS))
    assert entries == [
        {"id": "GPU-a", "count": 10, "devmem": 81920, "devcore": 100, "type": "NVIDIA H100 80GB HBM3", "mode": "hami-core", "health": True},
        {"id": "GPU-b", "index": 1, "count": 4, "devmem": 16384, "devcore": 100, "type": "NVIDIA-Tesla T4", "numa": 1, "mode": "hami-core"},
    ]  # fmt: skip
    assert [one.healthy for one in read_register(register(GPUS))] == [True, False]


def test_pairs_are_scored_by_their_links() -> None:
    found = {one["uuid"]: one["score"] for one in json.loads(scores(GPUS[:2]))}
    assert found == {"GPU-a": {"GPU-b": 400}, "GPU-b": {"GPU-a": 10}}


def test_a_pods_allocation_has_a_place_for_each_container() -> None:
    given = {"main": [Share("GPU-a", 3000 << 20, 300_000), Share("GPU-b", GIB, 0)]}
    made = allocation(["init", "main", "side"], given, "n1", 17 * 10**9)
    assert made["hami.io/vgpu-devices-allocated"] == (
        ";GPU-a,NVIDIA,3000,30:GPU-b,NVIDIA,1024,0:;;"
    )
    assert (made["hami.io/vgpu-node"], made["hami.io/bind-phase"]) == ("n1", "success")
    assert made["hami.io/vgpu-time"] == made["hami.io/bind-time"] == "17"
    assert [len(one) for one in decode(made["hami.io/vgpu-devices-allocated"])] == [0, 2, 0]

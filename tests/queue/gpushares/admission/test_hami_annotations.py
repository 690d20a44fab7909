"""Annotations that other people's tools read: as HAMi's own programs would have written them."""

from __future__ import annotations

import json
from dataclasses import replace

from queuecontroller.gpushares.admission.hami_annotations import (
    allocation,
    differences,
    register,
    scores,
)
from queuecontroller.scheduler.placement.capacity import GpuCapacity, MigProfile
from queuecontroller.scheduler.placement.stock import Share
from sluicecommon.hami.devices import decode, read_register
from sluicecommon.hami.handshake import stamp
from sluicecommon.hami.names import HANDSHAKE, REGISTER, SCORE

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
    cordoned = replace(GPUS[0], health="cordoned")
    assert [one.healthy for one in read_register(register([cordoned]))] == [True], "as HAMi's own"


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


NOW_NS = 1_795_000_000 * 10**9


def test_a_node_is_written_once_and_then_only_what_changes() -> None:
    first = differences(GPUS, {}, NOW_NS)
    assert set(first) == {REGISTER, SCORE, HANDSHAKE}
    assert str(first[HANDSHAKE]).endswith(" sluice")
    noted = {key: str(value) for key, value in first.items()}
    assert differences(GPUS, noted, NOW_NS + 10**12) == {}
    sick = (replace(GPUS[0], health="unhealthy"), *GPUS[1:])
    assert set(differences(sick, noted, NOW_NS)) == {REGISTER, HANDSHAKE}
    # One card has nothing to be near to.
    assert differences(GPUS[:1], noted, NOW_NS)[SCORE] is None
    assert differences((), {}, NOW_NS) == {}, "a node without GPUs has no register"


def test_what_others_put_there_is_written_over() -> None:
    noted = {key: str(value) for key, value in differences(GPUS, {}, NOW_NS).items()}
    forged = {**noted, REGISTER: '[{"id":"GPU-forged","count":99,"devmem":1}]'}
    again = differences(GPUS, forged, NOW_NS)
    assert again[REGISTER] == register(GPUS)


def test_a_schedulers_request_is_answered_and_an_agent_that_is_away_is_told_of() -> None:
    noted = {key: str(value) for key, value in differences(GPUS, {}, NOW_NS).items()}
    asked = {**noted, HANDSHAKE: "Requesting_2026-11-18 07:46:00"}
    assert set(differences(GPUS, asked, NOW_NS)) == {HANDSHAKE}
    assert differences(None, asked, NOW_NS) == {}, "no row is responsible for it"
    gone = differences(None, noted, NOW_NS)
    assert gone == {HANDSHAKE: f"Deleted_{stamp(NOW_NS)}"}
    deleted = {**noted, HANDSHAKE: str(gone[HANDSHAKE])}
    assert differences(None, deleted, NOW_NS) == {}
    assert str(differences(GPUS, deleted, NOW_NS)[HANDSHAKE]).startswith("Reported ")
    others = {**noted, HANDSHAKE: "Reported 2026-11-18 07:46:00.1 +0000 UTC m=+30.2"}
    assert differences(None, others, NOW_NS) == {}, "another plugin's node is not ours to end"


def test_profiles_of_a_card_in_mig_mode_are_registered() -> None:
    profiles = (MigProfile("1g.10gb", 7, 7, 10 * GIB), MigProfile("3g.40gb", 2, 2, 40 * GIB))
    card = replace(GPUS[0], mig_enabled=True, mig_profiles=profiles)
    (entry,) = json.loads(register([card]))
    assert entry["mode"] == "mig"
    assert [one["name"] for one in entry["migProfiles"]] == ["1g.10gb", "3g.40gb"]
    assert entry["migProfiles"][1] == {
        "name": "3g.40gb",
        "memoryMB": 40960,
        "core": 42,
        "sliceCount": 3,
        "placements": [{"start": 0, "size": 4}, {"start": 4, "size": 4}],
    }

"""Rules of single vendors: templates, modules, wings, masks, policies."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from queuecontroller.gpushares.vendors import ROWS, AskError, allocation, asks_of, cards_of, fit
from queuecontroller.gpushares.vendors.asks import containers_of
from queuecontroller.gpushares.vendors.kunlunxin import CARDS, COUNTS, WING, together
from tests.queue.gpushares.vendors.plugins import NODE, in_json


def node(annotations: dict[str, str] | None = None, **capacity: str) -> dict[str, Any]:
    return {
        "metadata": {"name": NODE, "annotations": annotations or {}, "labels": {}},
        "status": {"capacity": capacity},
    }


def pod(*limits: dict[str, Any], before: int = 0, **annotations: str) -> dict[str, Any]:
    containers = [{"name": f"c{i}", "resources": {"limits": one}} for i, one in enumerate(limits)]
    spec = {"initContainers": containers[:before], "containers": containers[before:]}
    return {"metadata": {"name": "p", "annotations": annotations}, "spec": spec}


def place(on: dict[str, Any], pods: list[Any], wanted: dict[str, Any]) -> Any:
    chosen = fit(ROWS, cards_of(ROWS, on, pods), asks_of(ROWS, wanted))
    if isinstance(chosen, str):
        return chosen
    wanted["metadata"]["annotations"] |= allocation(ROWS, chosen, wanted, NODE, 10**18)
    pods.append(wanted)
    return chosen


def admitted(word: str, limits: dict[str, Any], **annotations: str) -> Any:
    row = next(one for one in ROWS if one.word == word)
    (container,) = containers_of(pod(limits))
    return row.rules.admit(row, container, annotations)


# -- Ascend ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "rounded"), [(1, 16384), (16384, 16384), (16385, 32768), (32769, 65536)]
)
def test_memory_of_a_chip_is_rounded_up_to_a_template(asked: int, rounded: int) -> None:
    limits = {"huawei.com/Ascend910B3": 1, "huawei.com/Ascend910B3-memory": asked}
    made = admitted("Ascend910B3", limits)
    assert made.limits == {"huawei.com/Ascend910B3-memory": rounded}


def test_with_hamis_library_memory_is_what_is_asked_for() -> None:
    limits = {"huawei.com/Ascend910B3": 1, "huawei.com/Ascend910B3-memory": 5000}
    made = admitted("Ascend910B3", limits, **{"huawei.com/vnpu-mode": "hami-core"})
    assert made.limits == {"huawei.com/Ascend910B3-memory": 5000}


@pytest.mark.parametrize(
    ("word", "limits", "why"),
    [
        ("Ascend910B3", {"-memory": 70000}, "are more than the 65536 of a chip"),
        ("Ascend910B3", {"": 2, "-memory": 100}, "a part of each of 2 chips cannot be allocated"),
        ("Ascend910C", {"": 3}, "must be 1 or a multiple of 2, got 3"),
    ],
)
def test_what_a_chip_cannot_be_asked_for(word: str, limits: dict[str, int], why: str) -> None:
    name = f"huawei.com/{word}"
    full = {name: 1} | {f"{name}{key}": value for key, value in limits.items()}
    with pytest.raises(AskError, match=why):
        admitted(word, full)


def test_two_chips_of_a_910c_are_one_module() -> None:
    register = in_json(4, "C", count=1, devmem=65536, devcore=20, type="Ascend910C")
    on, pods = node({"hami.io/node-register-Ascend910C": register}), list[Any]()
    assert admitted("Ascend910C", {"huawei.com/Ascend910C": 1}).limits["huawei.com/Ascend910C"] == 2
    one = pod({"huawei.com/Ascend910C": 1}, **{"hami.io/use-Ascend910C-uuid": "C-1"})
    place(on, pods, one)  # one that came past the webhook
    first = place(on, pods, pod({"huawei.com/Ascend910C": 2}))
    (given,) = first["Ascend910C"]
    assert {part.device for part in given} == {"C-2", "C-3"}


def test_chips_of_one_network_go_together() -> None:
    devices = [
        {
            "id": f"B-{i}", "index": i, "count": 1, "devmem": 65536, "devcore": 20,
            "type": "Ascend910B2", "health": True, "custominfo": {"NetworkID": i % 2},
        }
        for i in range(4)
    ]  # fmt: skip
    on = node({"hami.io/node-register-Ascend910B2": json.dumps(devices)})
    chosen = place(on, [], pod({"huawei.com/Ascend910B2": 2}))
    indexes = [part.index % 2 for part in chosen["Ascend910B2"][0]]
    assert len(set(indexes)) == 1


# -- Kunlunxin ------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", COUNTS)
def test_of_kunlunxins_cards_only_linked_ones_are_given(count: int) -> None:
    """Whatever is free: what is given is free, and every two are in one wing or beside each other."""
    for bits in itertools.product((0, 1), repeat=CARDS):
        free = frozenset(i for i, bit in enumerate(bits) if bit)
        found = together(free, count)
        if found is None:
            wings = [sum(i // WING == w for i in free) for w in (0, 1)]
            assert max(wings) < count or count == CARDS, f"{sorted(free)} has room for {count}"
            continue
        assert len(set(found)) == count
        assert free.issuperset(found)
        if count == 2:
            a, b = found
            assert a // WING == b // WING or abs(a - b) == WING


def test_three_of_kunlunxins_cards_are_refused_with_what_would_do() -> None:
    on = node(**{"kunlunxin.com/xpu": "8"})
    assert "request 1, 2, 4 or 8" in place(on, [], pod({"kunlunxin.com/xpu": 3}))


def test_all_parts_of_a_kunlunxin_card_are_of_one_size() -> None:
    register = in_json(1, "X", count=4, devmem=98304, devcore=100, type="P800")
    on, pods = node({"hami.io/node-register-xpu": register}), list[Any]()
    place(on, pods, pod({"kunlunxin.com/vxpu": 1, "kunlunxin.com/vxpu-memory": 24576}))
    why = place(on, pods, pod({"kunlunxin.com/vxpu": 1, "kunlunxin.com/vxpu-memory": 49152}))
    assert "is divided into parts of 24576 MiB, not 49152" in why


# -- MetaX ----------------------------------------------------------------------------------------


def sgpus(count: int, **fields: Any) -> dict[str, Any]:
    common = {"totalDevCount": 16, "totalCompute": 100, "totalVRam": 65536, "healthy": True}
    devices = [{"uuid": f"M-{i}", **common, **fields} for i in range(count)]
    return node({"metax-tech.com/node-gpu-devices": json.dumps(devices)})


def sgpu(memory: object = 4, cores: int = 10, **annotations: str) -> dict[str, Any]:
    limits = {"metax-tech.com/sgpu": 1, "metax-tech.com/vmemory": memory, "metax-tech.com/vcore": cores}  # fmt: skip
    return pod(limits, **annotations)


QOS, CLASS = "metax-tech.com/sgpu-qos-policy", "metax-tech.com/sgpu-app-class"


def test_a_metax_card_has_one_policy() -> None:
    on, pods = sgpus(1), list[Any]()
    place(on, pods, sgpu(**{QOS: "fixed-share"}))
    assert not isinstance(place(on, pods, sgpu(**{QOS: "fixed-share"})), str)
    assert "has metax-tech.com/sgpu-qos-policy fixed-share" in place(
        on, pods, sgpu(**{QOS: "best-effort"})
    )


def test_offline_pods_of_metax_do_not_join_online_ones() -> None:
    on, pods = sgpus(1), list[Any]()
    place(on, pods, sgpu(**{CLASS: "online"}))
    assert "offline ones do not run" in place(on, pods, sgpu(**{CLASS: "offline"}))
    assert "has pods with" in place(on, pods, sgpu(**{QOS: "best-effort"}))
    assert not isinstance(place(on, pods, sgpu(cores=100, **{CLASS: "online"})), str)


@pytest.mark.parametrize(
    ("written", "mib"), [(4, 4096), ("4", 4096), ("4Gi", 4096), ("512Mi", 512)]
)
def test_metax_memory_without_a_unit_is_in_gib(written: object, mib: int) -> None:
    chosen = place(sgpus(1), [], sgpu(written))
    assert chosen["Metax-SGPU"][0][0].memory_mib == mib


def test_a_policy_is_given_to_who_names_none() -> None:
    limits = {"metax-tech.com/sgpu": 1}
    assert admitted("Metax-SGPU", limits).annotations == {QOS: "best-effort"}
    with pytest.raises(AskError, match=r"must be one of best-effort, .*, got 'fair'"):
        admitted("Metax-SGPU", limits, **{QOS: "fair"})


# -- Neuron ---------------------------------------------------------------------------------------


def neuron(devices: int, kind: str) -> dict[str, Any]:
    made = node(
        **{"aws.amazon.com/neuron": str(devices), "aws.amazon.com/neuroncore": str(2 * devices)}
    )
    made["metadata"]["labels"] = {"node.kubernetes.io/instance-type": kind}
    return made


def test_cores_of_a_neuron_device_are_told_by_their_numbers() -> None:
    on, pods = neuron(2, "inf2.8xlarge"), list[Any]()
    ids = []
    for _ in range(4):
        wanted = pod({"aws.amazon.com/neuroncore": 1})
        place(on, pods, wanted)
        ids.append(wanted["metadata"]["annotations"]["AWS_NEURON_IDS"])
    assert sorted(ids) == ["0", "1", "2", "3"]
    del pods[1]
    again = pod({"aws.amazon.com/neuroncore": 1})
    place(on, pods, again)
    assert again["metadata"]["annotations"]["AWS_NEURON_IDS"] == ids[1]


def test_trainium_devices_are_given_in_blocks() -> None:
    on, pods = neuron(16, "trn1.32xlarge"), list[Any]()
    place(on, pods, pod({"aws.amazon.com/neuron": 1}))
    chosen = place(on, pods, pod({"aws.amazon.com/neuron": 4}))
    assert [part.index for part in chosen["AWSNeuron"][0]] == [4, 5, 6, 7]
    assert "are neighbours" in place(on, pods, pod({"aws.amazon.com/neuron": 3}))


# -- Enflame --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "profile"),
    [
        ({"enflame.com/gcu-memory": 5}, "1g.6gb"),
        ({"enflame.com/gcu-memory": 7}, "3g.20gb"),
        ({"enflame.com/gcu-memory": 8192}, "3g.20gb"),
        ({"enflame.com/gcu-memory": 5, "enflame.com/gcu-core": 60}, "6g.40gb"),
    ],
)
def test_the_smallest_part_of_a_gcu_that_has_both(limits: dict[str, int], profile: str) -> None:
    register = {
        "devices": [{"index": "0", "minor": "0", "capacity": 6}],
        "profiles": {"1g.6gb": "0", "3g.20gb": "1", "6g.40gb": "2"},
    }
    on = node({"enflame.com/gcu-drs-capacity": json.dumps(register)})
    wanted = pod(limits)
    place(on, [], wanted)
    assigned = json.loads(wanted["metadata"]["annotations"]["assigned-containers"])
    assert assigned["c0"]["profileName"] == profile


# -- all ------------------------------------------------------------------------------------------


def test_a_container_that_ends_before_the_others_gives_back_what_it_had() -> None:
    register = in_json(1, "D", count=2, devmem=1000, devcore=100, type="Z100")
    on, pods = node({"hami.io/node-dcu-register": register}), list[Any]()

    def dcu(memory: int) -> dict[str, int]:
        return {"hygon.com/dcunum": 1, "hygon.com/dcumem": memory}

    assert not isinstance(place(on, pods, pod(dcu(900), dcu(300), before=1)), str)
    (cards,) = cards_of(ROWS, on, pods).values()
    assert (cards[0].memory_mib, cards[0].slots) == (900, 1)
    assert "has 100 of 200 MiB free" in place(on, pods, pod(dcu(200)))
    assert not isinstance(place(on, pods, pod(dcu(100))), str)


def test_two_containers_do_not_get_the_same_memory_twice() -> None:
    register = in_json(1, "D", count=4, devmem=1000, devcore=100, type="Z100")
    on = node({"hami.io/node-dcu-register": register})
    limits = {"hygon.com/dcunum": 1, "hygon.com/dcumem": 600}
    assert "container c1: 0 of 1 devices fit; 1 has 400 of 600 MiB free" in place(
        on, [], pod(limits, limits)
    )


def test_moore_threads_memory_is_one_of_its_sizes() -> None:
    with pytest.raises(AskError, match=r"must be one of 2, 4, 8, 16, 32, 64, 96 .*, got 3"):
        admitted("Mthreads", {"mthreads.com/vgpu": 1, "mthreads.com/sgpu-memory": 3})
    made = admitted("Mthreads", {"mthreads.com/vgpu": 2})
    assert made.limits == {"mthreads.com/sgpu-core": 32, "mthreads.com/sgpu-memory": 192}


HOSTILE = [
    "[",
    "[1]",
    "[{}]",
    "{}",
    '[{"id": "a,b"}]',
    '[{"id": "a"}, {"id": "a"}]',
    '[{"id": "a", "count": -1}]',
    '[{"id": "a", "devmem": 1e400}]',
    '[{"id": "a", "devmem": 99999999999}]',
    "a,b,c:",
    "a,1,2,3,t,0,perhaps:",
    "a,1,2,3,t,0,true,x,y:",
    "[" * 5000,
    json.dumps([{"id": f"d{i}"} for i in range(2000)]),
    "x" * (300 << 10),
]


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: text[:24])
def test_a_register_that_cannot_be_read_is_told_and_gives_nothing(text: str) -> None:
    for key in ("hami.io/node-dcu-register", "metax-tech.com/node-gpu-devices", "enflame.com/gcu-drs-capacity"):  # fmt: skip
        problems: list[str] = []
        assert cards_of(ROWS, node({key: text}), [], problems) == {} or not problems
        if key == "hami.io/node-dcu-register":
            (problem,) = problems
            assert problem.startswith("Hygon DCU: hami.io/node-dcu-register: ")


def test_a_pods_allocation_that_cannot_be_read_counts_for_nothing_and_is_told() -> None:
    register = in_json(1, "D", count=4, devmem=1000, devcore=100, type="Z100")
    on, problems = node({"hami.io/node-dcu-register": register}), list[str]()
    bad = pod({}, **{"hami.io/dcu-devices-allocated": "D-0,DCU,many,0:;"})
    (cards,) = cards_of(ROWS, on, [bad], problems).values()
    assert cards[0].slots == 0
    assert problems == [
        "hami.io/dcu-devices-allocated: container 0: memory: expected a number from 0 to 2147483647, got 'many'"
    ]

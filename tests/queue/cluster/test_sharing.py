"""A replica's cache of quotas, pods and nodes, and the figures that it serves from it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from queuecontroller.cluster.podwebhooks import share_pods
from queuecontroller.cluster.podwebhooks.share_pods import SharePods
from queuecontroller.gpushares.admission import Question, Rules
from queuecontroller.gpushares.vendors import ROWS, Card
from queuecontroller.server.metrics.exposition import render
from queuecontroller.state.nodes.nodes_room import NO_CORDON, Cordon
from queuecontroller.state.shell import Shell
from sluicecommon.kubernetes.decoding import Item
from sluicecommon.kubernetes.errors import ApiAway, ApiRefused
from sluicecommon.kubernetes.reflector import Changed, Removed
from tests.queue.gpushares.admission.pods import pod
from tests.queue.gpushares.vendors.plugins import NODE, PLUGINS, Simulated
from tests.queue.state.world import World

MEM = "nvidia.com/gpumem"
QUOTA = {
    "metadata": {"name": "q", "namespace": "team"},
    "spec": {"hard": {f"limits.{MEM}": 10000}},
}


def heard(desk: SharePods, document: dict[str, Any], uid: str, **changes: Any) -> None:
    head = {**document["metadata"], "uid": uid, "namespace": "team", "name": uid}
    whole = {**document, "metadata": head, **changes}
    desk.pod_changed(Changed(Item(f"team/{uid}", "1", desk.seen(whole))))


def refusal(desk: SharePods, memory: int) -> str:
    asked = pod({"nvidia.com/gpu": 1, MEM: memory})
    answer = desk.answer(Question(asked, None, "team", "user", f"t{memory}", dry=True))
    return "; ".join(map(str, answer.problems))


@pytest.fixture
def desk() -> SharePods:
    made = SharePods(Rules(), lambda: 0)
    made.quota_changed(Changed(Item("team/q", "1", QUOTA)))
    return made


def test_pods_count_while_they_are_there(desk: SharePods) -> None:
    asked = pod({"nvidia.com/gpu": 1, MEM: 6000})
    heard(desk, asked, "a")
    assert "6000 of 10000 are used" in refusal(desk, 5000)
    heard(desk, asked, "a", status={"phase": "Succeeded"})
    assert not refusal(desk, 10000)
    heard(desk, asked, "b")
    desk.pod_changed(Removed("team/b"))
    assert not refusal(desk, 10000)


def test_another_pod_by_the_same_name_counts_in_its_place(desk: SharePods) -> None:
    for uid in ("one", "two"):
        document = pod({"nvidia.com/gpu": 1, MEM: 6000})
        document["metadata"] |= {"uid": uid}
        desk.pod_changed(Changed(Item("team/same", "1", desk.seen(document))))
    assert desk.quotas.used() == {("team", MEM): 6000, ("team", "nvidia.com/gpu"): 1}
    desk.pod_changed(Removed("team/same"))
    assert desk.quotas.used() == {}


def test_a_quota_that_is_gone_refuses_nobody(desk: SharePods) -> None:
    assert refusal(desk, 20000)
    desk.quota_changed(Removed("team/q"))
    assert not refusal(desk, 20000)


def node(desk: SharePods, plugin: Simulated) -> None:
    read = desk.seen_node(plugin.node())
    desk.node_changed(Changed(Item(NODE, "1", read)))


def cards(desk: SharePods, plugin: Simulated) -> list[Card]:
    return list(desk.foreign.cards(NODE)[plugin.word])


@pytest.mark.parametrize("plugin", PLUGINS, ids=[one.word for one in PLUGINS])
def test_a_vendors_devices_are_given_and_come_back(desk: SharePods, plugin: Simulated) -> None:
    node(desk, plugin)
    foreign = desk.foreign
    for i in range(plugin.fills):
        document = plugin.pod(f"pod-{i}")
        given = foreign.choose(document, NODE, 10**18)
        assert not isinstance(given, str), f"pod {i}: {given}"
        foreign.assume(f"pod-{i}", NODE, document, given)
        if i % 2:  # and the watch reports it later, or at once
            document["metadata"]["annotations"] = given
            heard(desk, document, f"pod-{i}", spec={**document["spec"], "nodeName": NODE})
    assert foreign.why_not(foreign.asks(plugin.pod()), NODE), "it is full"
    # One that was not written, and one that has ended.
    foreign.forget("pod-0")
    assert not foreign.why_not(foreign.asks(plugin.pod()), NODE)
    desk.pod_changed(Removed("team/pod-1"))
    for i in range(2, plugin.fills):
        foreign.forget(f"pod-{i}")
        desk.pod_changed(Removed(f"team/pod-{i}"))
    assert all(card.slots == 0 for card in cards(desk, plugin))


def test_pods_that_are_heard_of_before_their_node_count(desk: SharePods) -> None:
    plugin = next(one for one in PLUGINS if one.word == "DCU")
    node(desk, plugin)
    document = plugin.pod()
    given = desk.foreign.choose(document, NODE, 10**18)
    assert not isinstance(given, str)
    desk.node_changed(Removed(NODE))
    document["metadata"]["annotations"] = given
    heard(desk, document, "early", spec={**document["spec"], "nodeName": NODE})
    assert desk.foreign.why_not(desk.foreign.asks(plugin.pod()), NODE).startswith("no device")
    node(desk, plugin)
    assert sum(card.slots for card in cards(desk, plugin)) == 1


def test_a_node_without_such_devices_is_not_kept(desk: SharePods) -> None:
    plain = {
        "metadata": {"name": "n", "annotations": {"x": "y"}},
        "status": {"capacity": {"cpu": "1"}},
    }
    assert desk.foreign.pruned_node(plain) is None


def test_a_cordon_is_heard_of_and_taken_away(desk: SharePods) -> None:
    told: list[tuple[str, Cordon]] = []
    desk.on_cordon = lambda name, cordon: told.append((name, cordon))

    def heard(spec: dict[str, Any], **annotations: str) -> None:
        document = {"metadata": {"name": "n", "annotations": annotations}, "spec": spec}
        desk.node_changed(Changed(Item("n", "1", desk.seen_node(document))))

    heard({"unschedulable": True}, **{"hami.io/device-cordon": "GPU-a, GPU-b,"})
    cordon = Cordon(True, frozenset({"GPU-a", "GPU-b"}))
    assert desk.cordons == {"n": cordon}
    heard({})
    assert desk.cordons == {}
    heard({"unschedulable": "yes"}, **{"hami.io/device-cordon": ""})
    desk.node_changed(Removed("n"))
    assert [one for _, one in told] == [cordon, NO_CORDON, NO_CORDON, NO_CORDON]


def test_a_node_whose_kubelet_has_no_gpus_to_allocate_is_stopped(
    desk: SharePods, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While its agent stops, each status of the kubelet has them again for a moment."""
    monkeypatch.setattr(share_pods, "RETURNS_S", 0.05)
    more: list[str] = []
    desk.on_more = more.append

    def seen(**allocatable: str) -> None:
        document = {"metadata": {"name": "n"}, "status": {"allocatable": allocatable}}
        desk.node_changed(Changed(Item("n", "1", desk.seen_node(document))))

    async def play() -> None:
        seen(**{"nvidia.com/gpu": "10", "cpu": "0"})
        assert not desk.stopped
        for _ in range(3):
            seen(**{"nvidia.com/gpu": "0"})
            assert desk.stopped == {"n"}
            seen(**{"nvidia.com/gpu": "10"})
            assert desk.stopped == {"n"}, "not yet"
        seen(**{"nvidia.com/gpu": "0"})
        await asyncio.sleep(0.1)
        assert desk.stopped == {"n"}
        assert more == []
        seen(**{"nvidia.com/gpu": "10"})
        seen(**{"nvidia.com/gpu": "10", "cpu": "1"})
        await asyncio.sleep(0.1)
        assert not desk.stopped
        assert more == ["GPUs of n"], "pods that were refused are tried again"
        seen(**{"nvidia.com/gpu": "0"})
        seen()
        await asyncio.sleep(0.1)
        assert not desk.stopped, "its GPUs are given by claims"
        for last in ("0", "10"):
            seen(**{"nvidia.com/gpu": "0"})
            seen(**{"nvidia.com/gpu": last})
            desk.node_changed(Removed("n"))
            assert not desk.stopped
            await asyncio.sleep(0.1)
            assert more == ["GPUs of n"] * 2

    asyncio.run(play())


def test_the_page_has_what_pods_take(desk: SharePods) -> None:
    plugin = next(one for one in PLUGINS if one.word == "DCU")
    node(desk, plugin)
    document = plugin.pod()
    given = desk.foreign.choose(document, NODE, 10**18)
    assert not isinstance(given, str)
    desk.foreign.assume("p", NODE, document, given)
    heard(desk, pod({"nvidia.com/gpu": 2, MEM: 300}), "a")
    world = World()
    text = render(Shell(world.book, world.store, _Clock()), "1.2.3", desk).decode()
    wanted = f'hami_resource_quota_used{{namespace="team",quota_name="{MEM}",limit="10000"}} 600\n'
    assert wanted in text
    assert f'hami_resource_quota_limit{{namespace="team",quota_name="{MEM}"}} 10000\n' in text
    labels = f'node="{NODE}",device_uuid="DCU-0",device_index="0",device_type="DCU-Z100"'
    assert f"hami_gpu_memory_allocated_bytes{{{labels}}} {16000 << 20}\n" in text
    assert f"hami_gpu_core_allocated_ratio{{{labels}}} 30\n" in text
    assert f"hami_gpu_shared_count{{{labels}}} 1\n" in text


@pytest.mark.parametrize("plugin", PLUGINS, ids=[one.word for one in PLUGINS])
def test_every_row_shows_its_devices_and_counts_quota(desk: SharePods, plugin: Simulated) -> None:
    node(desk, plugin)
    row = next(one for one in ROWS if one.word == plugin.word)
    amounts = dict(plugin.quota)
    for key in row.resources:
        amounts.setdefault(key, 0)
    document = plugin.pod("first")
    given = desk.foreign.choose(document, NODE, 10**18)
    assert not isinstance(given, str), given
    document["metadata"]["annotations"] = given
    heard(desk, document, "first", spec={**document["spec"], "nodeName": NODE})
    devices = desk.foreign.asks(plugin.pod()).asks[row.word][0]
    assert devices is not None
    used = desk.quotas.used()
    assert used["team", row.count] == devices.count
    assert {key: used.get(("team", key), 0) for key in plugin.quota} == plugin.quota
    # One more of whatever it counts is one too many.
    counted = {key for namespace, key in used if namespace == "team"}
    for key in counted:
        hard = {f"limits.{key}": used["team", key]}
        head = {"name": "full", "namespace": "team"}
        desk.quota_changed(
            Changed(Item("team/full", "1", {"metadata": head, "spec": {"hard": hard}}))
        )
        said = desk.answer(Question(plugin.pod(), None, "team", "user", key, dry=True))
        assert any(f"{key}: " in str(one) for one in said.problems), (key, said.problems)
    world = World()
    text = render(Shell(world.book, world.store, _Clock()), "1.2.3", desk).decode()
    shown = [line for line in text.splitlines() if f'node="{NODE}"' in line]
    assert sum(line.startswith("hami_gpu_shared_count{") for line in shown) == len(
        cards(desk, plugin)
    )
    shared = [line for line in shown if line.startswith("hami_gpu_shared_count{")]
    assert sum(float(line.rsplit(" ", 1)[1]) for line in shared) == devices.count
    assert f'quota_name="{row.count}"' in text
    for family in ("hami_node_gpu_overview", "hami_gpu_core_limit_ratio"):
        assert any(line.startswith(f"{family}{{") for line in shown), family


class _Clock:
    def now_ns(self) -> int:
        return 0


def test_what_is_reserved_is_reserved_until_it_is_given_back(desk: SharePods) -> None:
    """Two pods that several replicas let in at a time: one of them is bound."""
    documents = []
    for uid in ("a", "b"):
        document = pod({"nvidia.com/gpu": 1, MEM: 6000})
        document["metadata"] |= {"uid": uid, "name": uid}
        documents.append(document)
        desk.take(document)
    first, second = documents
    assert desk.refusals(second, ["n"]) == {}
    given = [(6000 << 20, 0)]
    assert desk.reserve(first, "n", given) == {}
    why = desk.refusals(second, ["n"])["n"]
    assert "6000 of 10000 are used" in why
    assert desk.reserve(second, "n", given) == why
    desk.give_back(first)
    assert desk.reserve(second, "n", given) == {}


def test_an_older_word_about_a_pod_changes_nothing(desk: SharePods) -> None:
    document = pod({"nvidia.com/gpu": 1, MEM: 6000})
    document["metadata"] |= {"uid": "a", "resourceVersion": "7"}
    bound = {**document, "spec": {**document["spec"], "nodeName": "n"}}
    desk.take(bound)
    older = {**document, "metadata": {**document["metadata"], "resourceVersion": "5"}}
    desk.pod_changed(Changed(Item("team/p", "5", desk.seen(older))))
    other = pod({"nvidia.com/gpu": 1, MEM: 6000})
    other["metadata"] |= {"uid": "b"}
    assert desk.refusals(other, ["n"]), "it is bound still"


def test_profiles_of_nodes_are_known_while_a_node_has_them(desk: SharePods) -> None:
    def node(name: str, **capacity: str) -> None:
        amounts = {f"nvidia.com/mig-{key}": value for key, value in capacity.items()}
        document = {"metadata": {"name": name}, "status": {"capacity": amounts}}
        desk.node_changed(Changed(Item(name, "1", desk.seen_node(document))))

    assert desk.rules.profiles == frozenset()
    node("a", **{"1g.10gb": "7", "3g.40gb": "0", "1g.10gb.me": "1"})
    node("b", **{"2g.20gb": "3"})
    assert desk.rules.profiles == {"nvidia.com/mig-1g.10gb", "nvidia.com/mig-2g.20gb"}
    desk.node_changed(Removed("b"))
    assert desk.rules.profiles == {"nvidia.com/mig-1g.10gb"}
    node("a")
    assert desk.rules.profiles == frozenset()


def test_the_controllers_own_name_is_requested_until_it_is_known(
    desk: SharePods, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the name is known, any user may change the placement annotation of a pod."""
    us = "system:serviceaccount:sluice:queue"
    answers: list[Any] = [
        ApiAway("no answer"),
        ApiRefused(403, "Forbidden", "not yet"),
        {"status": {}},
        {"status": {"userInfo": {"username": us}}},
    ]

    class Client:
        async def create(self, kind: object, document: object) -> Any:
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

    monkeypatch.setattr(share_pods, "AGAIN_S", 0.0)
    client: Any = Client()
    asyncio.run(desk._find_own_name(client))
    assert answers == []
    assert us in desk.rules.writers

"""Bindings: GPUs are taken before the write and given back when it is refused; an answer that was lost is found out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

import pytest

from queuecontroller.cluster.placing import extender_desk, trying_again
from queuecontroller.cluster.placing.extender_desk import ExtenderDesk
from queuecontroller.cluster.placing.gpu_pods import Budgets, GpuPods, read_budget, seen
from queuecontroller.cluster.session import Nothing
from queuecontroller.cluster.sharing.desk import SharesDesk
from queuecontroller.extender.answers import Defaults
from queuecontroller.extender.pods import PLACEMENT
from queuecontroller.placement.capacity import NodeCapacity
from queuecontroller.service.book import Book, BookSettings
from queuecontroller.service.nodes.nodes_room import NO_CORDON, Cordon
from queuecontroller.service.nodes.sessions import Hello
from queuecontroller.service.shell import Shell
from queuecontroller.shares import Rules
from sluicecommon.kubernetes.decoding import Item
from sluicecommon.kubernetes.errors import ApiAway, ApiRefused
from sluicecommon.kubernetes.reflector import Changed, Removed
from sluicecommon.kubernetes.resources import Resource
from tests.queue.extender.rooms import contradictions, dumped, node, pod


class Clock:
    def now_ns(self) -> int:
        return 1


class Api:
    """Pods as the API server keeps them; `fate` says what becomes of a binding."""

    def __init__(self) -> None:
        self.pods: dict[str, dict[str, Any]] = {}
        self.version = 0
        self.fate: Callable[[], None] = lambda: None
        self.bindings: list[Mapping[str, Any]] = []
        self.patches: list[tuple[str, str, Mapping[str, Any]]] = []

    def create(self, document: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        document["metadata"]["resourceVersion"] = str(self.version)
        self.pods[document["metadata"]["name"]] = document
        return document

    async def list_page(
        self, resource: Resource, parameters: Any = (), namespace: str = ""
    ) -> bytes:
        return dumped({"metadata": {}, "items": list(self.pods.values())})

    async def get(self, resource: Resource, name: str, namespace: str = "") -> dict[str, Any]:
        if name not in self.pods:
            raise ApiRefused(404, "NotFound", f"no pod {name}")
        return self.pods[name]

    async def create_part(
        self,
        resource: Resource,
        name: str,
        part: str,
        document: Mapping[str, Any],
        namespace: str = "",
    ) -> dict[str, Any]:
        self.bindings.append(document)
        await asyncio.sleep(0)
        self.fate()
        self.bind(name, document)
        return {}

    async def merge_patch(
        self, resource: Resource, name: str, patch: Mapping[str, Any], namespace: str = ""
    ) -> dict[str, Any]:
        self.patches.append((namespace, name, patch))
        return {}

    def bind(self, name: str, document: Mapping[str, Any]) -> None:
        there = self.pods[name]
        if there["spec"].get("nodeName"):
            raise ApiRefused(409, "Conflict", f"pod {name} is already assigned")
        there["spec"]["nodeName"] = document["target"]["name"]
        there["metadata"]["annotations"].update(document["metadata"].get("annotations") or {})
        self.create(there)


class World:
    def __init__(self, gpus: int = 1, sharing: bool = False, best_only: bool = False) -> None:
        """`sharing`: quota and other vendors' devices are known, too."""
        self.api = Api()
        self.sharing = SharesDesk(Rules(), lambda: 1) if sharing else None
        self.pods = GpuPods()
        book = Book(BookSettings(), False, lambda: "uid")
        self.shell = Shell(book, Nothing(0, "lease"), Clock())
        self.shell.start()
        for name in ("a", "b"):
            self.connect(name, node(name, gpus))
        self.may_write = True
        self.desk = ExtenderDesk(
            self.shell,
            self.api,  # type: ignore[arg-type]  # as much of a client as the desk uses
            self.pods,
            Budgets(),
            lambda: self.may_write,
            Defaults(best_only=best_only),
            self.sharing,
        )

    def connect(self, name: str, capacity: NodeCapacity) -> None:
        self.shell.book.desk.connect(Hello(name, capacity=capacity), 1)

    def away(self, name: str) -> None:
        self.shell.book.nodes.nodes[name].connected = False
        self.shell.book.nodes.version += 1

    def quota(self, memory_mib: int) -> None:
        assert self.sharing is not None
        head = {"name": "q", "namespace": "t"}
        document = {"metadata": head, "spec": {"hard": {"limits.nvidia.com/gpumem": memory_mib}}}
        self.sharing.quota_changed(Changed(Item("t/q", "1", document)))

    def create(self, name: str, **asked: Any) -> dict[str, Any]:
        document = self.api.create(pod(name, **asked))
        self.watch(name)
        return document

    def watch(self, name: str) -> None:
        """The watch tells of it."""
        self.desk._take(self.api.pods[name])

    async def ask(self, verb: str, **fields: Any) -> Any:
        return json.loads(await answered(self.desk, verb, dumped(fields)))

    async def bind(self, name: str, where: str) -> str:
        fields = {"PodName": name, "PodNamespace": "t", "PodUID": f"u-{name}", "Node": where}
        return str((await self.ask("bind", **fields))["Error"])


def test_a_pods_end_that_is_on_its_way_to_us_counts_before_another_is_refused() -> None:
    async def test(world: World) -> None:
        world.create("whole", cores=100)
        assert await world.bind("whole", "a") == ""
        world.watch("whole")
        late = {"Pod": pod("late", cores=100), "NodeNames": ["a"]}
        asking = asyncio.create_task(world.ask("filter", **late))
        await asyncio.sleep(0)
        world.pods.changed(Removed("t/whole"))
        assert (await asking)["NodeNames"] == ["a"]

    run(test)


@pytest.mark.parametrize(
    ("before_s", "may_write", "tried"), [(0.0, True, 1), (60.0, True, 0), (0.0, False, 0)]
)
def test_who_was_refused_just_before_room_was_heard_of_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, before_s: float, may_write: bool, tried: int
) -> None:
    """Once: the pod is changed, which kube-scheduler hears of."""

    async def test(world: World) -> None:
        world.create("whole", cores=100)
        assert await world.bind("whole", "a") == ""
        world.watch("whole")
        late = pod("late", cores=100)
        for _ in range(2):
            assert (await world.ask("filter", Pod=late, NodeNames=["a"]))["NodeNames"] == []
        world.may_write = may_write
        monkeypatch.setattr(trying_again, "monotonic", lambda: monotonic() + before_s)
        for name in ("whole", "another"):
            world.pods.changed(Removed(f"t/{name}"))
            await asyncio.sleep(0.01)
        patch = {"uid": "u-late", "annotations": {trying_again.TRIED_FOR: "u-whole"}}
        assert world.api.patches == [("t", "late", {"metadata": patch})] * tried
        assert (await world.ask("filter", Pod=late, NodeNames=["a"]))["NodeNames"] == ["a"]

    run(test)


def cordon(world: World) -> None:
    assert world.shell.book.nodes_room.cordon("a", Cordon(gpus=frozenset({"GPU-a-0"})))


def cordon_is_taken_away(world: World) -> None:
    world.shell.book.nodes_room.cordon("a", NO_CORDON)


def node_reports_again(world: World) -> None:
    world.connect("a", node("a", 1))


def quota_grows(world: World) -> None:
    world.quota(3000)


def quota_is_deleted(world: World) -> None:
    assert world.sharing is not None
    world.sharing.quota_changed(Removed("t/q"))


def device_comes(world: World) -> None:
    assert world.sharing is not None
    annotations = {"hami.io/node-dcu-register": "DCU-0,1,32768,60,DCU-Z100,0,true,0,hygon:"}
    document = {"metadata": {"name": "a", "annotations": annotations}, "status": {}}
    seen_node = world.sharing.seen_node(document)
    world.sharing.node_changed(Changed(Item("a", "1", seen_node)))


MORE = {
    "a cordon is taken away": (cordon, cordon_is_taken_away),
    "a card is healthy again": (
        lambda world: world.connect("a", node("a", 1, health="unhealthy")),
        node_reports_again,
    ),
    "a node has a session again": (lambda world: world.away("a"), node_reports_again),
    "a quota has grown": (lambda world: world.quota(1000), quota_grows),
    "a quota is gone": (lambda world: world.quota(1000), quota_is_deleted),
    "another vendor's device has come": (cordon, device_comes),
}


@pytest.mark.parametrize(("less", "more"), MORE.values(), ids=MORE)
def test_whatever_makes_room_is_heard_of_for_those_who_were_refused(
    monkeypatch: pytest.MonkeyPatch, less: Callable[[World], Any], more: Callable[[World], None]
) -> None:
    """However long ago: of some of it kube-scheduler itself never hears."""
    monkeypatch.setattr(extender_desk, "LAG_S", 0.0)
    monkeypatch.setattr(trying_again, "REST_S", 0.0)

    async def test(world: World) -> None:
        less(world)
        world.shell.book.nodes_room.follow(1)
        await asyncio.sleep(0.01)
        late = pod("late", gpumem=2000)
        assert not (await world.ask("filter", Pod=late, NodeNames=["a"]))["NodeNames"]
        world.shell.book.nodes_room.follow(1)
        await asyncio.sleep(0.01)
        assert world.api.patches == [], "nothing has changed since"
        monkeypatch.setattr(trying_again, "monotonic", lambda: monotonic() + 60)
        for _ in range(2):
            more(world)
            world.shell.book.nodes_room.follow(1)  # as each cycle does
            await asyncio.sleep(0.01)
        ((namespace, name, patch),) = world.api.patches
        assert (namespace, name, patch["metadata"]["uid"]) == ("t", "late", "u-late")

    run(test, sharing=True)


def test_less_than_a_pod_was_given_is_room() -> None:
    """It was resized."""

    async def test(world: World) -> None:
        world.create("large", gpumem=80_000)
        assert await world.bind("large", "a") == ""
        world.watch("large")
        late = pod("late", gpumem=50_000)
        assert not (await world.ask("filter", Pod=late, NodeNames=["a"]))["NodeNames"]
        document = world.api.pods["large"]
        place = json.loads(document["metadata"]["annotations"][PLACEMENT])
        place["containers"]["main"][0]["memory_bytes"] >>= 3
        document["metadata"]["annotations"][PLACEMENT] = json.dumps(place)
        world.api.create(document)
        world.watch("large")
        await asyncio.sleep(0.01)
        assert [one[1] for one in world.api.patches] == ["late"]
        assert (await world.ask("filter", Pod=late, NodeNames=["a"]))["NodeNames"] == ["a"]

    run(test)


def test_many_who_wait_are_changed_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """And who was asked about meanwhile, bound or deleted, is not."""
    monkeypatch.setattr(trying_again, "REST_S", 0.02)

    async def test(world: World) -> None:
        room = world.shell.book.nodes_room
        cordon(world)
        for n in range(3 * trying_again.AT_ONCE):
            asked = world.create(f"p{n}", gpumem=1)
            assert not (await world.ask("filter", Pod=asked, NodeNames=["a"]))["NodeNames"]
        cordon_is_taken_away(world)
        room.follow(1)
        await asyncio.sleep(0.005)
        assert len(world.api.patches) == trying_again.AT_ONCE
        names = [f"p{n}" for n in range(trying_again.AT_ONCE, 3 * trying_again.AT_ONCE)]
        assert await world.bind(names[0], "a") == ""
        world.watch(names[0])
        world.pods.changed(Removed(f"t/{names[1]}"))
        await asyncio.sleep(0.1)
        changed = [one[1] for one in world.api.patches[trying_again.AT_ONCE :]]
        assert changed == names[2:]

    run(test)


def test_where_only_the_best_is_wanted_others_with_room_are_not_named() -> None:
    async def test(world: World) -> None:
        world.create("first", gpumem=1000)
        assert await world.bind("first", "b") == ""
        world.watch("first")
        asked = {"Pod": pod("p", gpumem=1000), "NodeNames": ["a", "b"]}
        assert (await world.ask("filter", **asked))["NodeNames"] == ["b"]
        names = {"items": [{"metadata": {"name": name}} for name in "ab"]}
        tried = await world.ask("filter", Pod=asked["Pod"], Nodes=names)
        assert tried["Nodes"] == {"metadata": {}, **names}, "an autoscaler hears of all"

    run(test, best_only=True)


def test_a_dry_run_is_never_tried_again() -> None:
    async def test(world: World) -> None:
        world.create("whole", cores=100)
        assert await world.bind("whole", "a") == ""
        world.watch("whole")
        nodes = {"items": [{"metadata": {"name": "a"}}]}
        await world.ask("filter", Pod=pod("late", cores=100), Nodes=nodes)
        world.pods.changed(Removed("t/whole"))
        await asyncio.sleep(0.01)
        assert world.api.patches == []

    run(test)


def test_a_refusal_waits_for_no_more_than_a_moment_and_not_each_time() -> None:
    async def test(world: World) -> None:
        world.create("whole", cores=100)
        assert await world.bind("whole", "a") == ""
        late = dumped({"Pod": pod("late", cores=100), "NodeNames": ["a"]})
        made = world.desk.answer("filter", late)
        assert not isinstance(made, bytes), "it looks again"
        assert "needs 1 GPU" in json.loads(await made)["FailedNodes"]["a"]
        assert isinstance(world.desk.answer("filter", late), bytes), "and then not so soon"

    run(test)


async def answered(desk: ExtenderDesk, verb: str, body: bytes) -> bytes:
    """What needs nobody is answered at once."""
    made = desk.answer(verb, body)
    return made if isinstance(made, bytes) else await made


def run(test: Callable[[World], Any], **world: Any) -> None:
    async def main() -> None:
        made = World(**world)
        running = asyncio.create_task(made.desk.run())
        while not made.desk._knows:
            await asyncio.sleep(0)
        await test(made)
        assert contradictions(made.desk.extender.stock) == []
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(main())


def test_a_binding_carries_the_placement_and_is_conditional_on_the_pod() -> None:
    async def test(world: World) -> None:
        world.create("p", gpumem=50_000)
        assert await world.bind("p", "a") == ""
        (made,) = world.api.bindings
        assert made["metadata"]["uid"] == "u-p"
        place = json.loads(made["metadata"]["annotations"][PLACEMENT])
        assert place["containers"]["main"][0]["uuid"] == "GPU-a-0"
        world.create("q", gpumem=50_000)
        assert "lack memory" in await world.bind("q", "a"), "before the watch has told of p"
        world.watch("p")
        assert "lack memory" in await world.bind("q", "a"), "and after"
        assert await world.bind("q", "b") == ""

    run(test)


def test_what_is_cordoned_gets_nothing_new_and_keeps_what_it_has() -> None:
    async def test(world: World) -> None:
        room = world.shell.book.nodes_room
        world.create("before", gpumem=1_000)
        assert await world.bind("before", "a") == ""
        world.watch("before")
        assert room.cordon("a", Cordon(gpus=frozenset({"GPU-a-0", "GPU-elsewhere"})))
        world.create("p", gpumem=1_000)
        assert "1 are cordoned" in await world.bind("p", "a")
        assert await world.bind("p", "b") == ""
        assert not room.cordon("a", Cordon(gpus=frozenset({"GPU-a-0", "GPU-elsewhere"})))
        assert room.cordon("a", NO_CORDON)
        world.create("q", gpumem=80_000)
        assert await world.bind("q", "a") == ""
        world.create("r", gpumem=1_000)
        assert "lack memory" in await world.bind("r", "a"), "what came before the cordon counts"

    run(test)


def test_two_bindings_at_once_never_share_what_there_is_once() -> None:
    async def test(world: World) -> None:
        for n in range(6):
            world.create(f"p{n}", gpumem=30_000)
        answers = await asyncio.gather(*(world.bind(f"p{n}", "a") for n in range(6)))
        assert sorted(bool(one) for one in answers) == [False, False, True, True, True, True]

    run(test)


def test_a_refused_binding_gives_its_gpus_back() -> None:
    async def test(world: World) -> None:
        def refuse() -> None:
            raise ApiRefused(409, "Conflict", "somebody was faster")

        world.create("p", gpumem=50_000)
        world.api.fate = refuse
        assert "somebody was faster" in await world.bind("p", "a")
        assert len(world.desk.ledger) == 0
        world.api.fate = lambda: None
        assert await world.bind("p", "a") == ""

    run(test)


@pytest.mark.parametrize("carried_out", [True, False])
def test_an_answer_that_was_lost_is_found_out_and_the_gpus_are_kept_until_then(
    monkeypatch: pytest.MonkeyPatch, carried_out: bool
) -> None:
    monkeypatch.setattr(extender_desk, "AGAIN_S", 0.0)
    monkeypatch.setattr(extender_desk, "CARRIED_OUT_S", 0.0)

    async def test(world: World) -> None:
        def lose() -> None:
            if carried_out:
                world.api.bind("p", world.api.bindings[-1])
            raise ApiAway("the connection broke")

        world.create("p", gpumem=50_000)
        world.api.fate = lose
        assert "is not known" in await world.bind("p", "a")
        assert "is not known" in await world.bind("p", "b"), "not twice"
        assert len(world.desk.ledger) == 1
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(world.desk.ledger) == (1 if carried_out else 0)
        world.api.fate = lambda: None
        assert bool(await world.bind("p", "b")) == carried_out

    run(test)


def test_whoever_does_not_lead_any_more_binds_nothing() -> None:
    async def test(world: World) -> None:
        world.create("p", gpumem=1)
        world.may_write = False
        assert "does not lead" in await world.bind("p", "a")
        assert (world.api.bindings, len(world.desk.ledger)) == ([], 0)

    run(test)


def test_who_comes_to_lead_knows_what_was_bound_before_the_watch_tells() -> None:
    async def test(world: World) -> None:
        world.create("p", gpumem=50_000)
        await world.bind("p", "a")
        again = World()
        again.api = world.api
        again.desk._client = world.api  # type: ignore[assignment]
        answer = await again.ask("filter", Pod=pod("q", gpumem=50_000), NodeNames=["a", "b"])
        assert "does not know all pods yet" in answer["Error"]
        running = asyncio.create_task(again.desk.run())
        while not again.desk._knows:
            await asyncio.sleep(0)
        answer = await again.ask("filter", Pod=pod("q", gpumem=50_000), NodeNames=["a", "b"])
        assert answer["NodeNames"] == ["b"]
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    run(test)


def test_what_cannot_be_read_is_an_error_in_the_answer() -> None:
    async def test(world: World) -> None:
        assert json.loads(await answered(world.desk, "filter", b"{")) == {
            "Error": "is no JSON: Expecting property name enclosed in double quotes: line 1 column"
            " 2 (char 1)"
        }
        assert json.loads(await answered(world.desk, "prioritize", b"{")) == []
        assert json.loads(await answered(world.desk, "preempt", b"{")) == {
            "NodeNameToMetaVictims": {}
        }
        spoilt = {"metadata": {"annotations": 1}, "spec": {"containers": 1}}
        assert "cannot be read" in (await world.ask("filter", Pod=spoilt, NodeNames=["a"]))["Error"]
        assert "cannot be read" in await world.bind("nobody", "a")

    run(test)


def test_pods_are_kept_as_far_as_they_have_to_do_with_gpus() -> None:
    pods, told = GpuPods(), []
    pods.told = lambda uid, document: told.append((uid, document is not None))

    def item(document: dict[str, Any], version: int) -> Any:
        document["metadata"]["resourceVersion"] = str(version)
        key = f"t/{document['metadata']['name']}"
        return type("Item", (), {"key": key, "value": seen(document)})

    pods.changed(Changed(item(pod("plain", count=0), 1)))
    assert len(pods) == 0
    pods.changed(Changed(item(pod("p", gpumem=1), 2)))
    pods.changed(Changed(item(pod("p", gpumem=1), 1)))  # older, told late
    other = pod("p", gpumem=1)
    other["metadata"]["uid"] = "u-other"
    pods.changed(Changed(item(other, 3)))
    pods.changed(Removed("t/p"))
    assert told == [("u-p", True), ("u-p", False), ("u-other", True), ("u-other", False)]
    assert len(pods) == 0


def test_a_budget_is_read_whole() -> None:
    found = read_budget(
        {
            "metadata": {"name": "b", "namespace": "t"},
            "spec": {
                "selector": {
                    "matchLabels": {"app": "x"},
                    "matchExpressions": [{"key": "tier", "operator": "Exists"}],
                }
            },
            "status": {"disruptionsAllowed": 2, "disruptedPods": {"gone": "now"}},
        }
    )
    assert (found.namespace, found.allowed, found.disrupted) == ("t", 2, frozenset({"gone"}))
    assert found.selector.matches({"app": "x", "tier": "1"})
    assert not found.selector.matches({"app": "x"})

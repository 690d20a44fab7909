"""A running pod's annotation changes what it has: read strictly, within what quota was counted for, and reported in its
events once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from nodeagent.core.grants import events as ev
from nodeagent.core.grants.book import GrantBook
from nodeagent.core.grants.placement import GpuCapacity
from nodeagent.core.grants.states import Held, Rules
from nodeagent.core.kubelet.pod_documents import PodFacts
from nodeagent.core.kubelet.pod_limits import DefaultLimits, limits_from_requests
from nodeagent.core.kubelet.resizing import ResizeRequest, guaranteed, parse_resize, resize_texts
from nodeagent.ports.clients import MemoryAsk
from nodeagent.ports.kubelet import PermanentError
from nodeagent.ports.ledger import ContainerRef
from nodeagent.ports.processes import Process
from nodeagent.shell.pods.resizer import DONE, REFUSED, WAITS, Resizer, ResizeRules
from nodeagent.units import Bytes, GpuUuid, GrantId, Nanoseconds, PodUid, Ppm, RequestId
from sluicecommon.hami.names import ResourceNames

MIB, GIB = 1 << 20, 1 << 30
NAMES = ResourceNames()
NOBODY = Process(0, 0, 0, 0)
GPU = GpuCapacity(GpuUuid("GPU-0"), 0, "a card", Bytes(80 * GIB), Bytes(80 * GIB), 10)


@pytest.mark.parametrize(
    ("text", "wish"),
    [
        (
            "gpumem=8192 gpucores=40",
            ResizeRequest(MemoryAsk(amount_bytes=Bytes(8 * GIB)), Ppm(400_000)),
        ),
        (
            "gpumem=8Ki,gpucores=40",
            ResizeRequest(MemoryAsk(amount_bytes=Bytes(8 * GIB)), Ppm(400_000)),
        ),
        ("gpumem-percentage=50", ResizeRequest(MemoryAsk(part_ppm=Ppm(500_000)))),
        ("", ResizeRequest()),
    ],
)
def test_a_wish_is_in_the_units_of_the_resources(text: str, wish: ResizeRequest) -> None:
    assert parse_resize("main", text, NAMES) == wish


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "gpumemory=1",
            "'gpumemory=1' is not NAME=AMOUNT with gpumem, gpumem-percentage, gpucores",
        ),
        ("gpumem", "'gpumem' is not NAME=AMOUNT"),
        ("gpumem=lots", "gpumem: expected a quantity such as 8000, 8k or 8Gi, got 'lots'"),
        ("gpumem=0", "gpumem: expected a whole number above 0, got '0'"),
        ("gpumem=1.5", "expected a whole number above 0, got '1.5'"),
        ("gpumem=-1", "expected a quantity"),
        ("gpucores=100", "gpucores: 100 is more than 99 percent"),
        ("gpumem-percentage=101", "101 is more than 100 percent"),
        ("gpumem=1 gpumem=2", "gpumem is given twice"),
        ("gpumem=1 gpumem-percentage=2", "both set the memory"),
        ("gpumem=1 " * 40, "longer than 256 characters"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_annotations_name(text: str, why: str) -> None:
    with pytest.raises(PermanentError, match=r"annotation resize\.sluice\.dev/main") as told:
        parse_resize("main", text, NAMES)
    assert why in str(told.value)


def test_a_pod_that_is_made_may_say_what_of_its_memory_is_guaranteed() -> None:
    name = "request.sluice.dev/main"
    assert guaranteed({name: "gpumem=4096"}, "main", NAMES) == MemoryAsk(
        amount_bytes=Bytes(4 * GIB)
    )
    assert guaranteed({name: "gpumem=4096"}, "other", NAMES) is None
    for text in ("gpucores=5", "gpumem=1 gpucores=5", ""):
        with pytest.raises(PermanentError, match=r"annotation request\.sluice\.dev/main"):
            guaranteed({name: text}, "main", NAMES)


def test_only_our_own_annotations_are_wishes() -> None:
    found = resize_texts({"resize.sluice.dev/main": "a", "sluice.dev/resize": "b", "x": "c"})
    assert found == {"main": "a"}


class World:
    """A book of grants, and the events of pods."""

    def __init__(self, mode: str = "down") -> None:
        self.book = GrantBook(Rules(Nanoseconds(1), Nanoseconds(1), Nanoseconds(1), "boot"))
        self.book.handle(ev.GpusSeen((GPU,)))
        self.on_ended: list[Callable[[GrantId], None]] = []
        self.on_registered: list[Callable[[], None]] = []
        self.pods: dict[str, PodFacts] = {}
        self.told: list[tuple[str, str, str, bool]] = []
        self.queued: set[str] = set()
        self.mode = mode

    def live(self) -> Mapping[GrantId, Held]:
        return self.book.grants

    def grant(self, grant: GrantId | None) -> Held | None:
        return self.book.grants.get(grant) if grant is not None else None

    def apply(self, event: ev.Event) -> None:
        self.book.handle(event)

    def start(self, name: str, **resources: str) -> None:
        """A pod with one container, which has its grant."""
        asked = tuple((f"nvidia.com/{key}", amount) for key, amount in sorted(resources.items()))
        self.pods[name] = PodFacts(PodUid(name), name, "default", name, (("main", asked),))
        limits = limits_from_requests(dict(asked), 1, NAMES, DefaultLimits())
        grant = GrantId(f"of-{name}")
        of = ContainerRef(name, "main", ("x",))
        self.apply(
            ev.Asked(RequestId(len(self.pods)), grant, limits.ask, NOBODY, 0.0, container=of)
        )
        self.apply(ev.RegionReady(grant))

    def end(self, name: str) -> None:
        grant = GrantId(f"of-{name}")
        self.apply(ev.Released(grant))
        self.apply(ev.RegionRemoved(grant))
        for call in self.on_ended:
            call(grant)

    def wish(self, resizer: Resizer, name: str, text: str | None) -> None:
        pairs = () if text is None else (("resize.sluice.dev/main", text),)
        self.pods[name] = replace(self.pods[name], annotations=pairs)
        resizer.changed(self.pods[name])

    def has(self, name: str) -> tuple[int, int]:
        device = self.book.grants[GrantId(f"of-{name}")].record.devices[0]
        return device.memory_bytes // MIB, device.share_ppm // 10_000

    async def tell(self, pod: PodUid, reason: str, text: str, warns: bool) -> None:
        self.told.append((pod, reason, text, warns))


def play(world: World, act: Callable[[Resizer], Awaitable[None]]) -> list[tuple[Any, ...]]:
    async def run() -> None:
        resizer = Resizer(
            world,
            lambda: world.pods.values(),
            lambda grant: grant in world.queued,
            lambda: ResizeRules(world.mode, NAMES, DefaultLimits()),
            world.tell,
        )
        await act(resizer)
        for _ in range(4):
            await asyncio.sleep(0)

    asyncio.run(run())
    return [(pod, reason, warns) for pod, reason, _text, warns in world.told]


def test_less_and_back_again_when_the_annotation_goes() -> None:
    world = World()
    world.start("a", gpumem="8192", gpucores="40")

    async def act(resizer: Resizer) -> None:
        world.wish(resizer, "a", "gpumem=4096 gpucores=20")
        assert world.has("a") == (4096, 20)
        world.wish(resizer, "a", "gpucores=30")
        assert world.has("a") == (8192, 30), "what is not named is as it was made"
        resizer.look()
        world.wish(resizer, "a", None)
        assert world.has("a") == (8192, 40)

    assert play(world, act) == [("a", DONE, False)] * 3
    assert world.told[0][2] == "main: 8Gi and 40% -> 4Gi and 20%"


def test_more_than_was_counted_is_refused_unless_the_node_allows_it() -> None:
    for mode, has, told in (("down", 8192, REFUSED), ("on", 16384, DONE)):
        world = World(mode)
        world.start("a", gpumem="8192", gpucores="40")

        async def act(resizer: Resizer, world: World = world) -> None:
            world.wish(resizer, "a", "gpumem=16384")
            resizer.look()

        assert [one[1] for one in play(world, act)] == [told]
        assert world.has("a") == (has, 40)
    assert World("down").mode == "down"


def test_what_has_no_room_now_is_done_when_another_grant_ends() -> None:
    world = World("on")
    world.start("a", gpumem="40960", gpucores="40")
    world.start("b", gpumem="36864", gpucores="40")

    async def act(resizer: Resizer) -> None:
        world.wish(resizer, "a", "gpumem=61440")
        assert world.has("a") == (40960, 40)
        resizer.look()
        await asyncio.sleep(0)
        world.end("b")
        await asyncio.sleep(0)
        assert world.has("a") == (61440, 40)

    assert play(world, act) == [("a", WAITS, True), ("a", DONE, False)]
    assert "beside the other grants" in world.told[0][2]


def test_what_the_queue_decided_is_the_queues() -> None:
    world = World()
    world.start("a", gpumem="8192", gpucores="40")
    world.queued.add("of-a")

    async def act(resizer: Resizer) -> None:
        world.wish(resizer, "a", "gpumem=4096")

    assert play(world, act) == [("a", REFUSED, True)]
    assert "the queue decides what this pod has" in world.told[0][2]
    assert world.has("a") == (8192, 40)


def test_a_wish_that_was_there_before_the_grant_counts_once_it_is_there() -> None:
    world = World()

    async def act(resizer: Resizer) -> None:
        world.start("a", gpumem="8192", gpucores="40")
        world.pods["a"] = replace(
            world.pods["a"], annotations=(("resize.sluice.dev/main", "gpumem=4096"),)
        )
        for call in world.on_registered:
            call()

    assert play(world, act) == [("a", DONE, False)]
    assert world.has("a") == (4096, 40)


def test_a_nodes_daemon_that_comes_again_says_nothing_twice() -> None:
    world = World()
    world.start("a", gpumem="8192", gpucores="40")

    async def first(resizer: Resizer) -> None:
        world.wish(resizer, "a", "gpumem=4096")

    async def again(resizer: Resizer) -> None:
        resizer.look()

    play(world, first)
    assert play(world, again) == [("a", DONE, False)]


def test_a_pod_with_gpus_for_itself_has_all_of_their_time_and_may_have_less_memory() -> None:
    world = World()
    world.start("a", gpumem="8192", gpucores="100")

    async def act(resizer: Resizer) -> None:
        world.wish(resizer, "a", "gpucores=50")
        world.wish(resizer, "a", "gpumem=4096")

    assert play(world, act) == [("a", REFUSED, True), ("a", DONE, False)]
    assert world.has("a")[0] == 4096


def test_off_is_off() -> None:
    world = World("off")
    world.start("a", gpumem="8192", gpucores="40")

    async def act(resizer: Resizer) -> None:
        world.wish(resizer, "a", "gpumem=4096")

    assert play(world, act) == []

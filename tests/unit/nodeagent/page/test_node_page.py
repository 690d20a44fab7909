"""The node's page shows each user its own, root everything, and acts with the viewer's rights alone."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from nodeagent.adapters.web.page import NodePage
from nodeagent.core.page.picture import documents
from nodeagent.ports.clients import Peer, RefusalKind, Refused, ResizeAsk
from nodeagent.ports.views import (
    ContainedView,
    DeviceView,
    GpuView,
    GrantView,
    NodeEvent,
    NodeView,
)
from nodeagent.units import Bytes, GpuUuid, GrantId, Ppm, SharePolicy
from sluicecommon.page.tickets import Tickets
from sluicecommon.web.page import Refusal, Viewer

GIB = 1 << 30
GPU = GpuUuid("GPU-0")


def grant(uid: int, name: str) -> GrantView:
    device = DeviceView(GPU, 0, 8 * GIB, GIB, GIB, 0.3, 0.25, 10.0, 2.0, 100, 5, 0, "off")
    return GrantView(
        GrantId(name), "", uid, 1, "train --password=x", SharePolicy.HARD, "active", 1.0, 1, 0, "", (device,)
    )  # fmt: skip


VIEW = NodeView(
    gpus=(
        GpuView(
            GPU, 0, "H100", Bytes(80 * GIB), Bytes(3 * GIB), 132, "0:1", 0, 0.5, 40.4, 301.2,
            memory_granted_bytes=16 * GIB, share_granted_ratio=0.6, grants=2, slots=10, health="suspect", health_reason="slow",
        ),
    ),
    grants=(grant(1000, "anns"), grant(1001, "bens")),
    loops=(),
    waiting=0,
    reading_age_s=0.1,
    driver_version="570",
    nvml_error=None,
    nvml_restarts_total=0,
    version="1",
)  # fmt: skip
EVENTS = [
    NodeEvent(1, 1.0, "gpu", "warning", "GPU 0 is slow"),
    NodeEvent(2, 2.0, "ungranted", "critical", "pid 7", 1001, GrantId("bens"), 7, '{"sm_ratio": 0.9}'),
    NodeEvent(3, 3.0, "act", "info", "x" * 5000, 1000, evidence="no JSON"),
]  # fmt: skip
HELD = ContainedView(4, 1.0, "throttle", "ungranted", "critical", "pid 7", "bens", 7, 1001, "", "{}")  # fmt: skip


class Service:
    """Fake of the service with the methods that the page calls; it knows whose a grant is, as the
    real one does."""

    def __init__(self) -> None:
        self.done: list[tuple[int, str, object]] = []

    def node_view(self, peer: Peer) -> NodeView:
        return VIEW

    def contained(self, peer: Peer) -> list[ContainedView]:
        return [HELD]

    def resize_grant(self, peer: Peer, name: str, ask: ResizeAsk) -> GrantView:
        return self._act(peer, name, ask)

    def pause_grant(self, peer: Peer, name: str) -> GrantView:
        return self._act(peer, name, True)

    async def resume_grant(self, peer: Peer, name: str) -> GrantView:
        return self._act(peer, name, False)

    def _act(self, peer: Peer, name: str, what: object) -> GrantView:
        for one in VIEW.grants:
            if one.grant == name and peer.uid in (0, one.uid):
                self.done.append((peer.uid, name, what))
                return one
        raise Refused(RefusalKind.NOT_FOUND, f"no grant {name!r}, see `sluice ps`")


class Stage:
    def __init__(self) -> None:
        numbers = itertools.count()
        self.tickets: Tickets[int] = Tickets(lambda: f"s{next(numbers)}")
        self.service = Service()
        self.told: list[tuple[str, int]] = []
        self.page = NodePage(
            "n1",
            self.tickets,
            self.service,  # type: ignore[arg-type]  # as much of a service as it asks
            lambda after: EVENTS,
            frozenset({0}),
            lambda said, uid: self.told.append((said, uid)),
            "i",
        )
        self.page.look()

    async def viewer(self, uid: int) -> Viewer:
        session = await self.page.enter(self.tickets.issue(uid, 0.0 + asyncio.get_running_loop().time()))  # fmt: skip
        return await self.page.viewer(session)

    def sees(self, viewer: Viewer) -> set[tuple[str, str, str]]:
        assert self.page.frames is not None
        return {one.key for one in self.page.frames.board.everything(viewer.sight)}


def test_a_user_sees_its_own_grants_and_the_gpus() -> None:
    async def scene() -> None:
        stage = Stage()
        ann = await stage.viewer(1000)
        assert stage.sees(ann) == {
            ("Node", "", "n1"),
            ("Gpu", "", "GPU-0"),
            ("Work", "1000", "anns"),
            ("Event", "1000", "000000000003"),
        }
        root = await stage.viewer(0)
        assert {kind for kind, _, _ in stage.sees(root)} == {"Node", "Gpu", "Work", "Event", "Held"}
        assert len(stage.sees(root)) == 8

    asyncio.run(scene())


def test_an_action_is_that_users_and_leaves_a_row() -> None:
    async def scene() -> None:
        stage = Stage()
        ann = await stage.viewer(1000)
        await stage.page.act(ann, "resize", {"name": "anns", "cores": "45", "memory": ""})
        assert stage.service.done == [(1000, "anns", ResizeAsk(share_ppm=Ppm(450_000)))]
        ((said, uid),) = stage.told
        assert ("resize of grant anns" in said, uid) == (True, 1000)
        for verb in ("resize", "pause", "resume-grant"):
            with pytest.raises(Refusal) as refused:
                await stage.page.act(ann, verb, {"name": "bens", "cores": "1"})
            assert refused.value.status == 404
        assert len(stage.told) == 1

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("what", "given", "status"),
    [
        ("resize", {"name": "anns", "cores": "a lot"}, 422),
        ("resize", {"name": "anns", "memory": "-1"}, 422),
        ("resize", {"name": 7}, 404),
        ("release", {"name": "anns"}, 404),
        ("resize", {}, 404),
    ],
)
def test_what_makes_no_sense_is_refused(what: str, given: dict[str, Any], status: int) -> None:
    async def scene() -> None:
        stage = Stage()
        ann = await stage.viewer(1000)
        with pytest.raises(Refusal) as refused:
            await stage.page.act(ann, what, given)
        assert refused.value.status == status
        assert stage.told == []

    asyncio.run(scene())


def test_others_histories_and_buttons_are_not_there() -> None:
    async def scene() -> None:
        stage = Stage()
        ann = await stage.viewer(1000)
        assert (await stage.page.ask(ann, "history", {"gpu": "anns"}))["series"]["utilization"][-1] == 0.25  # fmt: skip
        assert (await stage.page.ask(ann, "history", {"gpu": "GPU-0"}))["series"]["used"]
        with pytest.raises(Refusal):
            await stage.page.ask(ann, "history", {"gpu": "bens"})
        mine = {"kind": "Grant", "namespace": "1000", "name": "anns"}
        assert (await stage.page.ask(ann, "may", mine))["verbs"]
        others = {"kind": "Grant", "namespace": "1001", "name": "bens"}
        assert (await stage.page.ask(ann, "may", others))["verbs"] == []

    asyncio.run(scene())


def test_documents_have_units_and_bounds() -> None:
    found = documents("n1", VIEW, EVENTS, [HELD], {1000: "ann"})
    gpu = found["Gpu", "", "GPU-0"]
    assert (gpu["celsius"], gpu["watts"], gpu["health"], gpu["why"]) == (40, 301, "suspect", "slow")
    work = found["Work", "1000", "anns"]
    assert (work["user"], work["used"], work["achieved"]) == ("ann", GIB, 0.25)
    assert found["Work", "1001", "bens"]["user"] is None
    assert found["Event", "1001", "000000000002"]["evidence"] == {"sm_ratio": 0.9}
    assert found["Event", "1000", "000000000003"]["evidence"] is None
    assert len(found["Event", "1000", "000000000003"]["text"]) == 600

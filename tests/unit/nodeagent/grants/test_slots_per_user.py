"""One user leaves slots for others, by default half of them; root, pods and queued work are no user's."""

from __future__ import annotations

import pytest

from nodeagent.core.grants import events as ev
from nodeagent.core.grants.book import GrantBook
from nodeagent.core.grants.placement import GpuCapacity
from nodeagent.core.grants.states import Rules
from nodeagent.ports.clients import GrantAsk, MemoryAsk, RefusalKind
from nodeagent.ports.ledger import ContainerRef
from nodeagent.ports.processes import Process
from nodeagent.settings.daemon import parse
from nodeagent.shell.node import rules_of
from nodeagent.units import GIB, MIB, GpuUuid, GrantId, Nanoseconds, RequestId, SharePolicy

BOOT = "6f1ed002-ab5a-4a3c-9f0e-1b2c3d4e5f60"
TWO_CARDS = tuple(
    GpuCapacity(GpuUuid(f"GPU-{number}"), number, "H200", 140 * GIB, 140 * GIB, 10)
    for number in range(2)
)


class Desk:
    def __init__(self, rules: Rules) -> None:
        self.book = GrantBook(rules)
        self.book.handle(ev.GpusSeen(TWO_CARDS))
        self.number = 0

    def ask(self, uid: int, gpus: int = 1, **more: object) -> object:
        """The grant, the refusal, or None while it waits."""
        self.number += 1
        ask = GrantAsk(gpus, MemoryAsk(amount_bytes=MIB), 10_000, SharePolicy.ELASTIC)
        owner = Process(self.number + 10, 1, uid, uid, self.number + 10)
        asked = ev.Asked(
            RequestId(self.number), GrantId(f"g{self.number}"), ask, owner, 1.0, **more
        )  # type: ignore[arg-type]
        return self.outcome(self.book.handle(asked))

    def outcome(self, instructions: list[ev.Instruction]) -> object:
        for one in instructions:
            if isinstance(one, ev.TellRefused):
                return one
            if isinstance(one, ev.MakeRegion):
                self.book.handle(ev.RegionReady(one.record.grant))
                return one.record
        return None

    def taken(self, uid: int, **more: object) -> int:
        for count in range(40):
            if not hasattr(self.ask(uid, **more), "devices"):
                return count
        return 40


def by_default() -> Desk:
    return Desk(rules_of(parse({}), BOOT))


def test_one_idle_user_takes_half_of_the_slots_and_another_the_rest() -> None:
    manager = by_default()
    assert manager.taken(1000) == 10
    assert manager.taken(1001) == 10


@pytest.mark.parametrize(
    ("uid", "more"),
    [
        (0, {}),
        (1000, {"queued": True}),
        (0, {"container": ContainerRef("ns", "pod", "uid", "main")}),
    ],
    ids=["root", "queued work", "a pod"],
)
def test_the_rule_is_about_users_on_their_own(uid: int, more: dict[str, object]) -> None:
    assert by_default().taken(uid, **more) == 20


def test_the_refusal_names_the_setting_and_who_waits_gets_his_next_slot() -> None:
    manager = by_default()
    manager.taken(1000)
    refused = manager.ask(1000)
    assert isinstance(refused, ev.TellRefused)
    assert refused.kind is RefusalKind.EXHAUSTED
    assert "holds 10 of this node's 20 slots and may hold 10" in refused.reason
    assert "grants.max_slots_percent_per_uid" in refused.reason
    assert manager.ask(1000, may_wait=True) is None
    assert hasattr(manager.ask(1001), "devices"), (
        "a request that waits for its user's slots blocks no other"
    )
    first = next(iter(manager.book.grants))
    manager.book.handle(ev.Released(first))
    after = [
        *manager.book.handle(ev.OwnerGone(first)),
        *manager.book.handle(ev.RegionRemoved(first)),
    ]
    assert any(isinstance(one, ev.MakeRegion) for one in after)


def test_what_a_user_can_never_hold_is_refused_also_with_patience() -> None:
    manager = Desk(
        Rules(Nanoseconds(1), Nanoseconds(1), Nanoseconds(1), BOOT, max_slots_ratio_per_uid=0.05)
    )
    refused = manager.ask(1000, gpus=2, may_wait=True)
    assert isinstance(refused, ev.TellRefused)
    assert refused.kind is RefusalKind.INVALID
    assert hasattr(manager.ask(1000), "devices"), "every user may have one slot"

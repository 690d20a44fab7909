"""Grants of one owner under one MPS server: who may join, what they share, and what is refused."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from nodeagent.core.grants import events as ev
from nodeagent.core.grants.book import GrantBook
from nodeagent.core.grants.placement import GpuCapacity
from nodeagent.core.grants.spill import SpillSignal
from nodeagent.core.kubelet.pod_limits import DefaultLimits
from nodeagent.core.kubelet.without_windows.groups import ANNOTATION, refuse_group, trusted_group
from nodeagent.ports.clients import GrantAsk, MemoryAsk, QueueAsk, RefusalKind, Refused
from nodeagent.ports.kubelet import ContainerRequests, PermanentError, PodIdentity
from nodeagent.ports.ledger import GrantRecord
from nodeagent.ports.processes import Process
from nodeagent.settings.daemon import GrantSettings, parse
from nodeagent.shell.api.asks import check_ask
from nodeagent.shell.api.service import Service
from nodeagent.shell.node import rules_of
from nodeagent.shell.pods.limits import PodLimits
from nodeagent.units import GIB, MIB, Bytes, GpuUuid, GrantId, PodUid, Ppm, RequestId, SharePolicy
from sluicecommon.hami.names import ResourceNames
from tests.kit.clock import ManualClock

BOOT = "6f1ed002-ab5a-4a3c-9f0e-1b2c3d4e5f60"
CARDS = tuple(
    GpuCapacity(GpuUuid(f"GPU-{number}"), number, "H200", Bytes(140 * GIB), Bytes(140 * GIB), 10)
    for number in range(2)
)


class Desk:
    def __init__(self) -> None:
        self.book = GrantBook(rules_of(parse({}), BOOT))
        self.book.handle(ev.GpusSeen(CARDS))
        self.number = 0

    def ask(self, group: str = "", policy: SharePolicy = SharePolicy.ELASTIC) -> GrantRecord | str:
        """The grant, or the reason of a refusal."""
        self.number += 1
        share = Ppm(1_000_000 if policy is SharePolicy.EXCLUSIVE else 10_000)
        ask = GrantAsk(1, MemoryAsk(Bytes(MIB)), share, policy, trusted_group=group)
        owner = Process(self.number + 10, 1, 0, 0, self.number + 10)
        name = GrantId(f"g{self.number}")
        for one in self.book.handle(ev.Asked(RequestId(self.number), name, ask, owner, 1.0)):
            if isinstance(one, ev.TellRefused):
                return one.reason
            if isinstance(one, ev.MakeRegion):
                self.book.handle(ev.RegionReady(name))
                return one.record
        raise AssertionError("no answer")


def gpu_of(answer: GrantRecord | str) -> str:
    assert isinstance(answer, GrantRecord), answer
    return answer.devices[0].gpu


def test_a_group_shares_its_gpus_with_no_other_grant() -> None:
    desk = Desk()
    first = desk.ask("uid 1000/a")
    assert isinstance(first, GrantRecord)
    assert first.trusted_group == "uid 1000/a"
    assert gpu_of(desk.ask("uid 1000/a")) == gpu_of(first)
    assert gpu_of(desk.ask()) != gpu_of(first), "a grant of no group"
    reason = desk.ask("uid 1001/a")
    assert isinstance(reason, str)
    assert "GPU 0 (H200): a trusted group's" not in reason, "it has a group itself"
    assert reason.count("shared by grants outside of its trusted group") == 2
    assert gpu_of(desk.ask("uid 1000/a")) == gpu_of(first)
    exclusive = desk.ask(policy=SharePolicy.EXCLUSIVE)
    assert isinstance(exclusive, str)
    assert "a trusted group's" in exclusive


def test_clients_of_an_mps_server_are_not_checkpointed() -> None:
    desk = Desk()
    first = desk.ask("uid 1000/a")
    assert isinstance(first, GrantRecord)
    desk.book.handle(ev.PauseSet(first.grant, True))
    with pytest.raises(Refused, match="the driver cannot checkpoint"):
        desk.book.handle(ev.SpillMoved(first.grant, SpillSignal.BEGIN))


def ask(group: str, **more: Any) -> GrantAsk:
    policy = more.pop("policy", SharePolicy.HARD)
    return GrantAsk(1, MemoryAsk(Bytes(MIB)), Ppm(1_000_000), policy, trusted_group=group, **more)


class Caller:
    uid = 1000


def grouped(settings: GrantSettings, group: str) -> str:
    nothing = cast(Any, None)
    service = cast(Any, Service)(
        settings,
        *[nothing] * 6,
        ManualClock(),
        frozenset(),
        lambda: True,
        str,
        nothing,
        nothing,
    )
    return str(service._with_group(Caller(), ask(group)).trusted_group)


def test_a_users_group_is_the_users_alone_and_needs_the_admins_permission() -> None:
    assert grouped(GrantSettings(), "") == ""
    assert grouped(GrantSettings(trusted_groups=True), "a") == "uid 1000/a"
    with pytest.raises(Refused, match=r"grants\.trusted_groups") as refused:
        grouped(GrantSettings(), "a")
    assert refused.value.kind is RefusalKind.DENIED


@pytest.mark.parametrize(
    "bad",
    [ask("a b"), ask("a", queue=QueueAsk("q")), ask("a", policy=SharePolicy.EXCLUSIVE)],
    ids=["a name", "the queue", "exclusive"],
)
def test_what_cannot_be_in_a_group_is_refused(bad: GrantAsk) -> None:
    check_ask(ask("a"), 10.0)
    with pytest.raises(Refused, match="trusted group"):
        check_ask(bad, 10.0)


def pod(namespace: str, group: str, cores: int = 30) -> ContainerRequests:
    asked = (("nvidia.com/gpu", "1"), ("nvidia.com/gpucores", str(cores)))
    identity = PodIdentity(PodUid("u"), namespace, "p")
    return ContainerRequests(identity, asked, (), ((ANNOTATION, group),))


def limits(requests: ContainerRequests, permitted: bool) -> str:
    source = PodLimits(ResourceNames(), DefaultLimits(trusted_groups=permitted))
    found = asyncio.run(source.limits(requests.pod, "main", requests, 1))
    assert found is not None
    return found.ask.trusted_group


def test_a_pods_group_is_its_namespaces_alone_and_needs_the_admins_permission() -> None:
    assert limits(pod("ann", ""), False) == ""
    assert limits(pod("ann", "a"), True) == "namespace ann/a"
    assert limits(pod("ben", "a"), True) == "namespace ben/a"
    with pytest.raises(PermanentError, match=r"kubelet\.trusted_groups"):
        limits(pod("ann", "a"), False)
    with pytest.raises(PermanentError, match="not a name"):
        limits(pod("ann", "a/b"), True)
    with pytest.raises(PermanentError, match="no exclusive grants"):
        limits(pod("ann", "a", 100), True)
    refuse_group(pod("ann", ""))
    with pytest.raises(PermanentError, match="a queue or scheduler"):
        refuse_group(pod("ann", "a"))
    assert trusted_group(pod("ann", ""), SharePolicy.EXCLUSIVE, DefaultLimits()) == ""

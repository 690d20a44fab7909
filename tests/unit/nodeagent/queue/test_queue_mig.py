"""MIG instances that a node reports, as the controller reads them and places by them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodeagent import native
from nodeagent.adapters.api.wire import Wire
from nodeagent.adapters.queue.wire import read_decision, write_capacity, write_held
from nodeagent.ports.queue import (
    Capacity,
    Decision,
    Desired,
    GivenShare,
    ReportedGpu,
    Work,
    WorkState,
)
from nodeagent.units import GIB, Bytes, GpuUuid, Ppm
from queuecontroller.scheduler.placement.choose import Chosen, NoPlace, PodToPlace, place
from queuecontroller.scheduler.placement.mig import Span
from queuecontroller.scheduler.placement.request import GpuRequest
from queuecontroller.scheduler.placement.stock import Stock
from queuecontroller.server.api.messages import read_capacity, read_shares

pytestmark = pytest.mark.skipif(bool(native.locate().missing()), reason="not built: `make build`")

CARD = GpuUuid("GPU-card")
SMALL = ReportedGpu(
    GpuUuid("MIG-small"),
    0,
    "H100 MIG 1g.10gb",
    Bytes(10 * GIB),
    10,
    "healthy",
    mig_profile="1g.10gb",
    parent=CARD,
    mig_start=6,
    mig_size=1,
)
LARGE = replace(
    SMALL,
    uuid=GpuUuid("MIG-large"),
    type="H100 MIG 3g.40gb",
    memory_bytes=Bytes(40 * GIB),
    mig_profile="3g.40gb",
    mig_start=0,
    mig_size=4,
)
WHOLE = ReportedGpu(GpuUuid("GPU-whole"), 1, "H100", Bytes(80 * GIB), 10, "healthy")


@pytest.fixture(scope="module")
def wire() -> Wire:
    return Wire(native.locate().wire_descriptors)


def stock(wire: Wire, *gpus: ReportedGpu) -> Stock:
    found = Stock()
    found.report("n1", read_capacity(write_capacity(wire, Capacity(gpus))))
    return found


def choose(stock: Stock, request: GpuRequest) -> list[Chosen] | NoPlace:
    return place(stock, [PodToPlace("", request)])


def test_the_controller_sees_profile_card_and_place(wire: Wire) -> None:
    small, whole = read_capacity(write_capacity(wire, Capacity((SMALL, WHOLE)))).gpus
    assert (small.parent_uuid, small.mig_profile, small.mig_span) == (CARD, "1g.10gb", Span(6, 1))
    assert small.mig_enabled
    assert (whole.parent_uuid, whole.mig_profile, whole.mig_span) == ("", "", None)
    assert not whole.mig_enabled


def test_the_controller_sees_why_a_card_is_not_healthy(wire: Wire) -> None:
    sick = replace(WHOLE, health="lost", health_reason="XID 79: fallen off the bus\n" + "x" * 300)
    (seen,) = read_capacity(write_capacity(wire, Capacity((sick,)))).gpus
    assert seen.health == "lost"
    assert seen.health_reason.startswith("XID 79: fallen off the bus?x")
    assert len(seen.health_reason) == 200


def test_an_instance_goes_to_one_pod_of_its_profile(wire: Wire) -> None:
    nodes = stock(wire, SMALL, LARGE, WHOLE)
    found = choose(nodes, GpuRequest(mig=("3g.40gb",)))
    assert isinstance(found, list)
    (share,) = found[0].shares
    assert (share.uuid, share.mig, share.span) == (LARGE.uuid, "3g.40gb", Span(0, 4))
    assert share.memory_bytes == 40 * GIB
    nodes.hold("first", "n1", found[0].shares)
    assert isinstance(choose(nodes, GpuRequest(mig=("3g.40gb",))), NoPlace)
    assert isinstance(choose(nodes, GpuRequest(mig=("1g.10gb",))), list)
    nodes.release("first")
    assert choose(nodes, GpuRequest(mig=("3g.40gb",))) == found


@pytest.mark.parametrize(
    "used", [{"outside_slots": 1}, {"outside_memory_bytes": GIB}], ids=["a grant", "a process"]
)
def test_an_instance_that_others_use_is_taken(wire: Wire, used: dict[str, int]) -> None:
    nodes = stock(wire, replace(SMALL, **used))  # type: ignore[arg-type]  # fields by name
    assert isinstance(choose(nodes, GpuRequest(mig=("1g.10gb",))), NoPlace)


def test_shares_go_to_whole_cards(wire: Wire) -> None:
    found = choose(stock(wire, SMALL, LARGE, WHOLE), GpuRequest(memory_bytes=GIB))
    assert isinstance(found, list)
    assert [share.uuid for share in found[0].shares] == [WHOLE.uuid]
    assert isinstance(choose(stock(wire, SMALL, LARGE), GpuRequest(memory_bytes=GIB)), NoPlace)


def test_a_decision_about_an_instance_comes_back_as_it_went(wire: Wire) -> None:
    given = GivenShare(LARGE.uuid, Bytes(40 * GIB), Ppm(0), "3g.40gb", 0, 4)
    decision = Decision("a/b", "", "u", 1, 1, Desired.RUN, gpus=(given,))
    held = write_held(wire, Work(decision, WorkState.RUNNING))
    assert read_decision(held.decision).gpus == (given,)
    (share,) = read_shares(held.decision.gpus)
    assert (share.mig, share.mig_start, share.mig_size) == ("3g.40gb", 0, 4)

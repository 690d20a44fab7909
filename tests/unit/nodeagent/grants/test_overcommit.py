"""Memory beyond what a card has: promised to all together, never to one."""

from __future__ import annotations

from nodeagent.core.grants.placement import Load, Placed, Unplaced, place
from nodeagent.ports.clients import GrantAsk, MemoryAsk
from nodeagent.ports.gpus import NodeReading
from nodeagent.shell.gpus.readings import Gpus
from nodeagent.units import GIB, MIB, Bytes, Ppm, SharePolicy
from tests.kit.fakes.nvml import gpu_reading


def gpus(scaling: float, reserve_mib: int = 0) -> Gpus:
    found = Gpus(10, reserve_mib, scaling)
    found.take(NodeReading((gpu_reading(0, 80 * GIB),), "999.1", "12.999"), 1)
    return found


def ask(memory: MemoryAsk) -> GrantAsk:
    return GrantAsk(1, memory, Ppm(100_000), SharePolicy.ELASTIC)


def test_without_a_word_nothing_is_promised_twice() -> None:
    (capacity,) = gpus(1.0, 512).capacities()
    assert capacity.memory_bytes == capacity.largest_bytes == 80 * GIB - 512 * MIB


def test_all_together_may_have_more_than_the_card_and_one_may_not() -> None:
    (capacity,) = gpus(1.5).capacities()
    assert capacity.memory_bytes == 120 * GIB
    assert capacity.physical_bytes == 80 * GIB
    whole = place(ask(MemoryAsk(part_ppm=Ppm(1_000_000))), [capacity], {})
    assert isinstance(whole, Placed)
    assert whole.devices[0].memory_bytes == 80 * GIB
    too_much = place(ask(MemoryAsk(amount_bytes=Bytes(81 * GIB))), [capacity], {})
    assert isinstance(too_much, Unplaced)
    assert "has 80Gi in all" in too_much.reason
    taken = {capacity.uuid: Load(memory_bytes=80 * GIB, grants=1)}
    second = place(ask(MemoryAsk(amount_bytes=Bytes(40 * GIB))), [capacity], taken)
    assert isinstance(second, Placed)
    third = place(ask(MemoryAsk(amount_bytes=Bytes(41 * GIB))), [capacity], taken)
    assert isinstance(third, Unplaced)
    assert "40Gi of 120Gi free" in third.reason


def test_less_than_the_card_is_possible_too() -> None:
    (capacity,) = gpus(0.5).capacities()
    assert capacity.memory_bytes == capacity.largest_bytes == 40 * GIB

"""When the GPUs are read again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodeagent.adapters.nvml.wire import decode, encode
from nodeagent.core.gpus.sampling import (
    BURST_READINGS,
    REST_READINGS,
    Pace,
    changed,
    interval_s,
    next_pace,
)
from nodeagent.ports.gpus import GpuReading, MigReading, NodeReading, ProcessReading, ProfileReading
from nodeagent.units import GIB, MIB, Bytes, GpuUuid
from tests.kit.fakes.nvml import gpu_reading

CALM = NodeReading((gpu_reading(0), gpu_reading(1)))


def with_first(**change: object) -> NodeReading:
    return NodeReading((replace(CALM.gpus[0], **change), CALM.gpus[1]))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("what", "now", "is_change"),
    [
        ("nothing", CALM, False),
        ("a process came", with_first(processes=(ProcessReading(7),)), True),
        ("memory jumped", with_first(memory_used_bytes=Bytes(GIB)), True),
        ("an allocator at work", with_first(memory_used_bytes=Bytes(100 * MIB)), False),
        ("load jumped", with_first(utilization_ratio=0.9), True),
        ("load crept", with_first(utilization_ratio=0.35), False),
        ("clocks fell", with_first(throttle_reasons=("hw_slowdown",)), True),
        ("a GPU failed", with_first(error="GPU is lost"), True),
        ("a GPU went", NodeReading(CALM.gpus[:1]), True),
        ("an XID", replace(CALM, xid_events=((CALM.gpus[0].uuid, 31),)), True),
        ("the driver does not answer", NodeReading(error="hung"), False),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_starts_a_burst(what: str, now: NodeReading, is_change: bool) -> None:
    assert changed(CALM, now) is is_change
    assert (next_pace(Pace(), CALM, now) == Pace(BURST_READINGS)) is is_change


def test_a_node_that_always_changes_is_read_twice_as_often_at_most() -> None:
    pace, before, seconds = Pace(), CALM, 0.0
    readings = 400
    for number in range(readings):
        now = with_first(processes=(ProcessReading(number),))
        pace = next_pace(pace, before, now)
        seconds += interval_s(pace, 1.0, 0.1)
        before = now
    assert readings / seconds <= 2.05
    assert seconds < readings * 0.6, "and yet there are bursts"


def test_a_suspicion_is_confirmed_at_once_even_while_resting() -> None:
    resting = Pace(0, REST_READINGS)
    asked = next_pace(resting, CALM, CALM, urgent=True)
    assert interval_s(asked, 1.0, 0.1) == 0.1
    assert interval_s(next_pace(asked, CALM, CALM), 1.0, 0.1) == 1.0


def test_the_quick_interval_is_never_longer_than_the_ordinary() -> None:
    assert interval_s(Pace(3), 0.1, 5.0) == 0.1


FULL = NodeReading(
    gpus=(
        replace(
            gpu_reading(0),
            processes=(ProcessReading(7, Bytes(GIB), 0.5, 0.1, 0.0, 0.0), ProcessReading(8)),
            throttle_reasons=("hw_slowdown", "sync_boost"),
            row_remap_pending=True,
            energy_joules_total=12.5,
            mig=(MigReading(GpuUuid("MIG-1"), "1g.10gb", 7, 0, Bytes(GIB), None),),
            profile=ProfileReading(graphics_active_ratio=0.25),
        ),
        GpuReading(GpuUuid("GPU-x"), 1, "lost one", Bytes(0), error="GPU is lost"),
    ),
    driver_version="1",
    xid_events=((GpuUuid("GPU-x"), 79),),
)


@pytest.mark.parametrize("reading", [FULL, NodeReading(error="hung"), NodeReading()])
def test_a_reading_survives_the_way_to_the_daemon(reading: NodeReading) -> None:
    assert decode(encode(reading)) == reading


@pytest.mark.parametrize(
    "line", ["", "{}", "[]", "null", "[1,2,3,4,5]", "[[[1]],null,null,[],null]", "x"]
)
def test_garbage_on_that_way_is_an_error(line: str) -> None:
    with pytest.raises((ValueError, TypeError)):
        decode(line)

"""Geometries as people write them, and what is refused before a card is touched."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.core.gpus.mig_geometry import (
    GeometryError,
    assumed_spans,
    geometry,
    in_words,
    is_cut_so,
    parse_geometry,
    plan,
)
from nodeagent.ports.mig import MigDevice, MigInstance, MigProfile, MigState, Span
from nodeagent.units import MIB, Bytes, GpuUuid


def profile(name: str, slices: int, most: int, mib: int, *starts: int) -> MigProfile:
    size = {1: 1, 2: 2, 3: 4, 4: 4, 7: 8}[slices]
    spans = tuple(Span(at, size) for at in starts)
    return MigProfile(name, 0, slices, most, Bytes(mib * MIB), spans)


H100 = (
    profile("1g.10gb", 1, 7, 9984, 0, 1, 2, 3, 4, 5, 6),
    replace(profile("1g.20gb", 1, 4, 20096), spans=tuple(Span(at, 2) for at in (0, 2, 4, 6))),
    profile("2g.20gb", 2, 3, 20096, 0, 2, 4),
    profile("3g.40gb", 3, 2, 40320, 0, 4),
    profile("4g.40gb", 4, 1, 40320, 0),
    profile("7g.80gb", 7, 1, 80896, 0),
)
A30 = (
    MigProfile("1g.6gb", 14, 1, 4, Bytes(5952 * MIB)),
    MigProfile("2g.12gb", 5, 2, 2, Bytes(11968 * MIB)),
    MigProfile("4g.24gb", 0, 4, 1, Bytes(24000 * MIB)),
)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("1g.10gb", ("1g.10gb",)),
        ("1g.10gb,1g.10gb,3g.40gb", ("1g.10gb", "1g.10gb", "3g.40gb")),
        (" 2x1G.10GB , 1g.10gb+me", ("1g.10gb", "1g.10gb", "1g.10gb+me")),
        ("none", ()),
    ],
)
def test_a_geometry_is_read(text: str, wanted: tuple[str, ...]) -> None:
    assert parse_geometry(text) == wanted


@pytest.mark.parametrize(
    "text", ["", "1g", "1g.10gb;2g.20gb", "0x1g.10gb", "65x1g.10gb", "1g.10gb,", "none,1g.10gb"]
)
def test_what_is_no_geometry_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(GeometryError, match=r"1g\.10gb|1 to 64"):
        parse_geometry(text)


@given(st.lists(st.sampled_from([one.name for one in H100]), max_size=7))
def test_words_and_geometries_are_each_others_inverse(wanted: list[str]) -> None:
    assert sorted(parse_geometry(in_words(wanted))) == sorted(wanted)


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        ("9g.99gb", r"no profile 9g\.99gb on this GPU, it offers: 1g\.10gb, 1g\.20gb"),
        ("2x4g.40gb", r"2 of 4g\.40gb: this GPU takes 1 at most"),
        ("4g.40gb,2x2g.20gb", r"needs 8 compute slices, this GPU has 7"),
        ("2x3g.40gb,1g.10gb", r"take 9 of 8 memory slices, and may begin only at 0, 4 \(3g\.40gb"),
    ],
)
def test_what_a_card_cannot_be_cut_into_is_refused_with_the_reason(wanted: str, why: str) -> None:
    with pytest.raises(GeometryError, match=why):
        plan(H100, parse_geometry(wanted))


@given(st.lists(st.sampled_from([one.name for one in H100]), max_size=8))
def test_a_plan_keeps_every_rule(wanted: list[str]) -> None:
    known = {one.name: one for one in H100}
    try:
        places = plan(H100, wanted)
    except GeometryError:
        return
    assert sorted(one.profile for one in places) == sorted(wanted)
    assert sum(known[one.profile].slices for one in places) <= 7
    for at, one in enumerate(places):
        assert one.span in known[one.profile].spans
        assert not any(one.span.overlaps(other.span) for other in places[:at])


@pytest.mark.parametrize("profiles", [H100, A30], ids=["H100", "A30"])
def test_where_the_driver_does_not_say_the_sizes_tell(profiles: tuple[MigProfile, ...]) -> None:
    silent = [replace(one, spans=()) for one in profiles]
    found = {one.name: assumed_spans(one, silent) for one in silent}
    if profiles is H100:
        assert found == {one.name: one.spans for one in H100}
    else:
        starts = {name: [span.start for span in spans] for name, spans in found.items()}
        assert starts == {"1g.6gb": [0, 1, 2, 3], "2g.12gb": [0, 2], "4g.24gb": [0]}


def state(enabled: bool, pending: bool, *profiles: str, usable: bool = True) -> MigState:
    device = (MigDevice(GpuUuid("MIG-1"), 0, 0),) if usable else ()
    instances = tuple(
        MigInstance(at, name, 0, Span(at, 1), device) for at, name in enumerate(profiles)
    )
    return MigState(GpuUuid("GPU-1"), 0, "H", True, enabled, pending, H100, instances)


@pytest.mark.parametrize(
    ("now", "wanted", "done"),
    [
        (state(False, False), None, True),
        (state(False, True), None, False),
        (state(True, True), None, False),
        (state(True, True), (), True),
        (state(True, False), (), False),
        (state(True, True, "1g.10gb", "2g.20gb"), ("2g.20gb", "1g.10gb"), True),
        (state(True, True, "1g.10gb"), ("1g.10gb", "1g.10gb"), False),
        (state(True, True, "1g.10gb", usable=False), ("1g.10gb",), False),
    ],
)
def test_nothing_is_done_twice(now: MigState, wanted: tuple[str, ...] | None, done: bool) -> None:
    assert is_cut_so(now, wanted) is done


def test_a_state_is_told_with_what_waits_for_a_reset() -> None:
    assert geometry(state(False, True)) == "MIG off, on after the next reset"
    assert geometry(state(True, False)) == "MIG on, no instance, off after the next reset"
    told = geometry(state(True, True, "1g.10gb", usable=False))
    assert told == "MIG on, 1g.10gb at 0:1 (without compute instance)"

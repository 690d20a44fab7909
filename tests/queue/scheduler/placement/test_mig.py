"""MIG instances: where they may be, that they never overlap, and that they keep to cards in MIG mode."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuecontroller.scheduler.placement.capacity import GpuCapacity, MigProfile, NodeCapacity
from queuecontroller.scheduler.placement.choose import Chosen, NoPlace, PodToPlace, place
from queuecontroller.scheduler.placement.fragmentation import Gauge, in_words, of_stock
from queuecontroller.scheduler.placement.mig import (
    Card,
    Span,
    arrange,
    known_spans,
    profile_of,
    resource_of,
)
from queuecontroller.scheduler.placement.request import GpuRequest, Policy
from queuecontroller.scheduler.placement.stock import Stock

GIB = 1 << 30
H100 = ("1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb")
A30 = ("1g.6gb", "2g.12gb", "4g.24gb")


def card(
    index: int = 0, node: str = "a", names: tuple[str, ...] = H100, **more: object
) -> GpuCapacity:
    profiles = tuple(MigProfile(name, 7, 7, 10 * GIB) for name in names)
    made = GpuCapacity(
        f"GPU-{node}-{index}", index, "H100", 80 * GIB, mig_enabled=True, mig_profiles=profiles
    )
    return made if not more else made.__class__(**{**_fields(made), **more})  # type: ignore[arg-type]


def _fields(one: GpuCapacity) -> dict[str, object]:
    return {name: getattr(one, name) for name in GpuCapacity.__slots__}


def stock(*cards: GpuCapacity) -> Stock:
    made = Stock()
    made.report("a", NodeCapacity(cards))
    return made


def wanted(*profiles: str, **more: object) -> list[PodToPlace]:
    return [PodToPlace("pod", GpuRequest(mig=profiles, **more))]  # type: ignore[arg-type]


def hold(made: Stock, key: str, *profiles: str) -> Chosen:
    found = place(made, wanted(*profiles))
    assert not isinstance(found, NoPlace), found.reason
    made.hold(key, found[0].node, found[0].shares)
    return found[0]


@pytest.mark.parametrize(
    ("profile", "others", "starts"),
    [
        ("1g.10gb", H100, range(7)),
        ("1g.10gb+me", H100, range(7)),
        ("1g.20gb", H100, (0, 2, 4, 6)),
        ("2g.20gb", H100, (0, 2, 4)),
        ("3g.40gb", H100, (0, 4)),
        ("7g.80gb", H100, (0,)),
        ("1g.35gb", ("1g.18gb", "1g.35gb", "7g.141gb"), (0, 2, 4, 6)),
        ("1g.6gb", A30, range(4)),
        ("2g.12gb", A30, (0, 2)),
        ("whole", H100, ()),
    ],
)
def test_where_each_profile_may_begin(
    profile: str, others: tuple[str, ...], starts: tuple[int, ...]
) -> None:
    assert [span.start for span in known_spans(profile, others)] == list(starts)


@pytest.mark.parametrize(
    ("resource", "profile"),
    [
        ("nvidia.com/mig-1g.10gb", "1g.10gb"),
        ("nvidia.com/mig-1g.10gb.me", "1g.10gb+me"),
        ("nvidia.com/gpu", None),
    ],
)
def test_profiles_have_nvidias_resource_names(resource: str, profile: str | None) -> None:
    assert profile_of(resource) == profile
    if profile is not None:
        assert resource_of(profile) == resource


def test_small_instances_leave_large_ones_possible() -> None:
    made = stock(card())
    assert hold(made, "one", "1g.10gb").shares[0].span == Span(6, 1)
    hold(made, "two", "1g.10gb")
    assert made.nodes["a"].mig["3g.40gb"] == 1
    assert hold(made, "three", "3g.40gb").shares[0].span == Span(0, 4)
    assert made.nodes["a"].mig["1g.10gb"] == 1
    made.release("three")
    assert made.nodes["a"].mig["4g.40gb"] == 1


def test_a_pod_may_want_several_and_different_ones() -> None:
    made = stock(card(0), card(1))
    found = hold(made, "one", "3g.40gb", "1g.10gb", "3g.40gb", "1g.10gb")
    assert [share.mig for share in found.shares] == ["3g.40gb", "1g.10gb", "3g.40gb", "1g.10gb"]
    assert {share.memory_bytes for share in found.shares} == {10 * GIB}
    refused = place(made, wanted("7g.80gb", "7g.80gb"))
    assert isinstance(refused, NoPlace)
    assert "2 MIG instances 7g.80gb" in refused.reason


def test_shares_and_instances_keep_to_their_cards() -> None:
    made = Stock()
    plain = GpuCapacity("GPU-a-0", 0, "H100", 80 * GIB)
    made.report("a", NodeCapacity((plain, card(1))))
    share = place(made, [PodToPlace("pod", GpuRequest(gpus=1, memory_bytes=GIB, share_ppm=1))])
    assert not isinstance(share, NoPlace)
    assert share[0].shares[0].uuid == "GPU-a-0"
    two = place(made, [PodToPlace("pod", GpuRequest(gpus=2, memory_bytes=GIB, share_ppm=1))])
    assert isinstance(two, NoPlace)
    assert "GPU 1 is in MIG mode and gives instances only" in two.reason
    assert hold(made, "one", "1g.10gb").shares[0].uuid == "GPU-a-1"


@pytest.mark.parametrize(
    ("gpus", "profile", "reason"),
    [
        ((card(health="lost"),), "1g.10gb", "GPU 0 is lost"),
        ((card(names=A30),), "1g.10gb", "does not offer 1g.10gb (but 1g.6gb, 2g.12gb, 4g.24gb)"),
        ((GpuCapacity("x", 0, "H100", GIB),), "1g.10gb", "GPU 0 is not in MIG mode"),
        ((card(outside_spans=(Span(0, 4), Span(4, 4))),), "1g.10gb", "has room for 0 of 1 1g.10gb"),
    ],
)
def test_a_refusal_says_what_is_in_the_way(
    gpus: tuple[GpuCapacity, ...], profile: str, reason: str
) -> None:
    found = place(stock(*gpus), wanted(profile))
    assert isinstance(found, NoPlace)
    assert reason in found.reason


@pytest.mark.parametrize(
    ("policy", "uuid"), [(Policy.BINPACK, "GPU-a-1"), (Policy.SPREAD, "GPU-a-0")]
)
def test_cards_are_filled_or_spared(policy: Policy, uuid: str) -> None:
    made = stock(card(0), card(1))
    found = place(made, wanted("1g.10gb", use_uuids=("GPU-a-1",)))
    assert not isinstance(found, NoPlace)
    made.hold("first", "a", found[0].shares)
    found = place(made, wanted("1g.10gb", gpu_policy=policy))
    assert not isinstance(found, NoPlace)
    assert found[0].shares[0].uuid == uuid


def test_a_report_may_say_itself_where_instances_may_be() -> None:
    odd = MigProfile("2g.20gb", 1, 1, 20 * GIB, (Span(1, 2),))
    made = stock(GpuCapacity("x", 0, "H100", 80 * GIB, mig_enabled=True, mig_profiles=(odd,)))
    assert hold(made, "one", "2g.20gb").shares[0].span == Span(1, 2)
    assert isinstance(place(made, wanted("2g.20gb")), NoPlace)


def test_free_slices_no_profile_fits_in_are_fragments() -> None:
    made = stock(card())
    hold(made, "one", "2g.20gb")
    hold(made, "two", "1g.20gb")
    found = Gauge().measure(made)
    assert found["mig-3g.40gb"].fits == 1
    assert found["mig-7g.80gb"].ppm == 1_000_000
    assert found["mig-1g.10gb"].free_bytes == 40 * GIB
    assert found["100%"].free_bytes == 0, "a card in MIG mode has no memory to share"
    assert "no piece is large enough" in in_words(made, GpuRequest(mig=("7g.80gb",)))
    assert of_stock(made, GpuRequest(mig=("1g.20gb",))).ppm == 0


def possible(cards: list[list[Span]], profiles: list[str]) -> bool:
    """Every way to set them, one by one."""
    choices = [
        [(at, span) for at in range(len(cards)) for span in known_spans(name, H100)]
        for name in profiles
    ]
    return any(
        all(
            not one[1].overlaps(other)
            for i, one in enumerate(way)
            for other in [*cards[one[0]], *(s for a, s in way[:i] if a == one[0])]
        )
        for way in product(*choices)
    )


slots = st.lists(
    st.sampled_from([Span(0, 4), Span(4, 2), Span(2, 1), Span(6, 2), Span(3, 1)]), max_size=3
)


@given(
    taken=st.lists(slots, min_size=1, max_size=2),
    profiles=st.lists(
        st.sampled_from(["1g.20gb", "2g.20gb", "3g.40gb", "7g.80gb"]), min_size=1, max_size=4
    ),
)
def test_instances_are_set_wherever_there_is_a_way_and_never_overlap(
    taken: list[list[Span]], profiles: list[str]
) -> None:
    spans = {name: known_spans(name, H100) for name in H100}
    found = arrange([Card(spans, one) for one in taken], profiles)
    assert (found is not None) is possible(taken, profiles)
    for i, (at, span) in enumerate(found or ()):
        assert span in spans[profiles[i]]
        others = [*taken[at], *(s for a, s in (found or ())[:i] if a == at)]
        assert not any(span.overlaps(other) for other in others)

"""Places for MIG instances: what the scheduler and the kubelet get of them, so that two that overlap are never both had."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

from nodeagent.core.dra.partitions import Partition, consumed, counters, partitions
from nodeagent.core.dra.pool import Body, bodies, normal, plan, read_slice
from nodeagent.core.gpus.cuts import free_spans, shortage
from nodeagent.core.kubelet.places import best_first, numbers, place_offers
from nodeagent.ports.mig import MigPlace, MigProfile, Span
from nodeagent.units import Bytes, GpuUuid

CARD = GpuUuid("GPU-00000000-1111-2222-3333-444444444444")


def profile(name: str, slices: int, most: int, size: int, *starts: int) -> MigProfile:
    return MigProfile(name, 0, slices, most, Bytes(size << 33), tuple(Span(at, size) for at in starts))  # fmt: skip


H100 = (
    profile("1g.10gb", 1, 7, 1, 0, 1, 2, 3, 4, 5, 6),
    profile("1g.10gb+me", 1, 1, 1, 0, 1, 2, 3, 4, 5, 6),
    profile("1g.20gb", 1, 4, 2, 0, 2, 4, 6),
    profile("2g.20gb", 2, 3, 2, 0, 2, 4),
    profile("3g.40gb", 3, 2, 4, 0, 4),
    profile("4g.40gb", 4, 1, 4, 0),
    profile("7g.80gb", 7, 1, 8, 0),
)
KNOWN = {one.name: one for one in H100}
ALL = partitions(CARD, H100)


def amounts(document: Any) -> dict[str, int]:
    return {name: int(one["value"]) for name, one in document["counters"].items()}


def test_counters_let_two_places_through_exactly_where_the_card_has_room_for_both() -> None:
    has = amounts(counters(CARD, H100, ()))
    for one, other in itertools.combinations(ALL, 2):
        taken = [amounts(consumed(each, KNOWN[each.place.profile])[0]) for each in (one, other)]
        counted = all(
            sum(each.get(name, 0) for each in taken) <= amount for name, amount in has.items()
        )
        room = not one.place.span.overlaps(other.place.span) and shortage(H100, [one.place, other.place]) is None  # fmt: skip
        assert counted == room, (one, other)


def test_names_are_labels_of_dns_and_each_its_own() -> None:
    names = [one.name for one in ALL]
    assert len(set(names)) == len(names) == 25
    assert all(re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", one) for one in names)


def test_what_others_have_is_taken_off() -> None:
    has = amounts(counters(CARD, H100, [MigPlace("3g.40gb", Span(4, 4))]))
    assert [has[f"memory-slice-{at}"] for at in range(8)] == [1, 1, 1, 1, 0, 0, 0, 0]
    assert (has["compute-slices"], has["engine-me"]) == (4, 1)


def test_counters_are_in_slices_of_their_own_and_are_written_again_when_they_change() -> None:
    def wanted(*others: MigPlace) -> tuple[Body, ...]:
        return bodies([{"name": "gpu-0-1g"}], [counters(CARD, H100, others)])

    first = wanted()
    assert [(len(one.devices), len(one.counters)) for one in first] == [(0, 1), (1, 0)]
    writes = plan("n", "", first, {}, {})
    specs = [write.document["spec"] for write in writes]  # type: ignore[union-attr]
    assert ["sharedCounters" in one for one in specs] == [True, False]
    assert ["devices" in one for one in specs] == [False, True]
    seen = {}
    for write in writes:
        head = {"resourceVersion": "1", "uid": "u", "name": write.name}
        one = read_slice({"metadata": head, "spec": write.document["spec"]})  # type: ignore[union-attr]
        seen[write.name] = one
    assert normal(next(iter(seen.values())).body) == normal(first[0])
    assert plan("n", "", first, seen, {}) == []
    assert len(plan("n", "", wanted(MigPlace("1g.10gb", Span(0, 1))), seen, {})) == 2


# --- for the kubelet ------------------------------------------------------------------------------


def healthy(answered: list[MigPlace], taken: list[MigPlace]) -> dict[str, int]:
    offered = place_offers(CARD, 0, H100, True, answered, taken)
    return {name: sum(one.healthy for one in ones) for name, ones in offered.items()}


def test_what_overlaps_an_answer_is_not_offered_and_the_answer_stays() -> None:
    assert healthy([], [])["1g.10gb"] == 7
    given = MigPlace("3g.40gb", Span(4, 4))
    now = healthy([given], [given])
    assert (now["1g.10gb"], now["3g.40gb"], now["4g.40gb"], now["7g.80gb"]) == (4, 2, 1, 0)


def test_ids_are_each_places_own() -> None:
    known = numbers(H100)
    assert len(known) == len(ALL)
    assert set(known.values()) == {one.place for one in ALL}
    assert all(1000 <= number <= 9999 for number in known)


def test_small_ones_go_where_large_ones_lose_least() -> None:
    order = best_first(H100, (), ())
    first = min((place for place in order if place.profile == "1g.10gb"), key=order.__getitem__)
    assert first.span.start in (4, 5, 6), "4g has only the first half"
    idle = MigPlace("1g.10gb", Span(0, 1))
    assert min(best_first(H100, [idle], ()), key=best_first(H100, [idle], ()).__getitem__) == idle


@pytest.mark.parametrize("taken", [[], [MigPlace("1g.10gb", Span(6, 1))]])
def test_a_whole_card_is_free_only_where_nothing_is(taken: list[MigPlace]) -> None:
    assert bool(free_spans(H100, taken, "7g.80gb")) == (not taken)


def test_a_partition_is_told_by_card_and_place() -> None:
    assert (
        Partition(CARD, MigPlace("1g.10gb+me", Span(3, 1))).name == f"{CARD.lower()}-1g-10gb-me-3"
    )

"""The book of claims where the kubelet's calls come late, or for what was never there."""

from __future__ import annotations

from nodeagent.core.dra import book as cb
from nodeagent.ports.clients import GrantAsk, MemoryAsk
from nodeagent.ports.dra.claims import ClaimAllocation, ClaimRef, ClaimUid, Share
from nodeagent.ports.kubelet import Nonce
from nodeagent.units import WHOLE_PPM, Bytes, GrantId, Ppm, SharePolicy

MIB = 2**20
APART_NS = 10
CLAIM = ClaimRef("default", "claim", ClaimUid("uid"))
GRANT = GrantId("g-1")
ASK = GrantAsk(1, MemoryAsk(amount_bytes=Bytes(MIB)), Ppm(WHOLE_PPM), SharePolicy.ELASTIC)


def book() -> cb.ClaimBook:
    return cb.ClaimBook(cb.ClaimRules("boot", APART_NS))


def prepare(held: cb.ClaimBook) -> list[cb.Instruction]:
    """Asked for, and granted; what the grant brought."""
    share = Share("main", "node", "gpu-0", "share-0", Bytes(MIB), 10)
    part = cb.PartAsk((0,), ASK, Nonce(f"{1:032x}"), GRANT)
    allocation = ClaimAllocation(CLAIM, (share,), by_container=False)
    done = held.handle(cb.PrepareAsked(1, allocation, (part,), 0.0), 0)
    assert any(isinstance(one, cb.MakeGrant) for one in done)
    return list(held.handle(cb.GrantMade(1, GRANT), 0))


def test_unprepare_of_an_unknown_claim_is_fine_and_does_nothing() -> None:
    held = book()
    assert list(held.handle(cb.UnprepareAsked(7, ClaimUid("never seen")), 0)) == [cb.Answer(7)]
    assert not held.rows


def test_a_prepare_that_comes_after_its_unprepare_is_ended_once_the_claim_is_gone_for_good() -> (
    None
):
    held = book()
    prepare(held)
    done = list(held.handle(cb.UnprepareAsked(2, CLAIM.uid), 0))
    assert cb.EndGrant(GRANT) in done
    held.handle(cb.GrantEnded(GRANT), 0)
    assert not held.rows
    assert cb.Answer(1) in prepare(held), "it may be another pod's"
    gone = frozenset({CLAIM.uid})
    assert list(held.handle(cb.Looked(gone, 1), 1)) == [], "one look may be too early"
    assert CLAIM.uid in held.rows
    later = 1 + APART_NS
    assert cb.EndGrant(GRANT) in list(held.handle(cb.Looked(gone, later), later))
    held.handle(cb.GrantEnded(GRANT), later)
    assert not held.rows

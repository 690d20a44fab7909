"""The book of claims under every order of calls, refusals and kills, against a world that only knows what was durable: nothing
is lost, nothing is there twice, nothing stays."""

from __future__ import annotations

import itertools

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from nodeagent.core.dra import book as cb
from nodeagent.core.dra.allocation import parts_of
from nodeagent.ports.clients import GrantAsk, MemoryAsk
from nodeagent.ports.dra.claims import (
    ClaimAllocation,
    ClaimRef,
    ClaimState,
    ClaimUid,
    PreparedClaim,
    Share,
)
from nodeagent.ports.kubelet import Nonce
from nodeagent.ports.ledger import ContainerRef
from nodeagent.units import WHOLE_PPM, Bytes, GrantId, Ppm, SharePolicy
from sluicecommon.plain import read_plain, write_all_fields

CLAIMS = tuple(ClaimRef("default", f"claim-{n}", ClaimUid(f"uid-{n}")) for n in range(4))
MIB = 2**20
APART_NS = 10


def allocation(claim: ClaimRef, shape: int) -> ClaimAllocation:
    """One of a few: `shape` 0 and 1 differ in size, 2 has two parts, as the scheduler makes them for two containers."""
    count = 2 if shape == 2 else 1
    shares = tuple(
        Share(f"container-{n}-request-0", "node", f"gpu-{n}", f"share-{n}", Bytes((shape + 1) * MIB), 10)
        for n in range(count)
    )  # fmt: skip
    return ClaimAllocation(claim, shares, by_container=count > 1)


ASK = GrantAsk(1, MemoryAsk(amount_bytes=Bytes(MIB)), Ppm(WHOLE_PPM), SharePolicy.ELASTIC)


class Killed(Exception):
    pass


class Claims(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.numbers = itertools.count(1)
        self.grants: dict[GrantId, ContainerRef] = {}
        self.files: dict[Nonce, GrantId] = {}
        self.ledger: dict[ClaimUid, PreparedClaim] = {}
        self.told: dict[ClaimUid, tuple[ClaimAllocation, tuple[Nonce, ...]]] = {}
        """Answers that the kubelet has received and not given back: it keeps the names."""
        self.now_ns = 0
        self.killed_after = -1
        self.book = cb.ClaimBook(cb.ClaimRules("boot", APART_NS))

    # --- the world ---

    def carry_out(self, event: cb.Event, refuse: bool = False) -> dict[int, str]:
        """Answers by call; "" is yes. Raises Killed after so many instructions."""
        answers: dict[int, str] = {}
        line: list[cb.Event] = [event]
        while line:
            for do in self.book.handle(line.pop(0), self.now_ns):
                if self.killed_after == 0:
                    raise Killed
                self.killed_after -= 1
                match do:
                    case cb.Commit(rows):
                        for row in rows:
                            plain = read_plain(PreparedClaim, write_all_fields(row))
                            assert plain == row, "what is written is read again"
                            if row.state is ClaimState.RELEASED:
                                self.ledger.pop(row.claim.uid, None)
                            else:
                                self.ledger[row.claim.uid] = row
                    case cb.MakeGrant(call, grant, _, container, _):
                        if refuse:
                            line.append(cb.GrantRefused(call, "no room"))
                        else:
                            assert grant not in self.grants
                            self.grants[grant] = container
                            line.append(cb.GrantMade(call, grant))
                    case cb.EndGrant(grant):
                        if self.grants.pop(grant, None) is not None:
                            line.append(cb.GrantEnded(grant))
                    case cb.WriteCdi(nonce, grant, _, _):
                        assert grant in self.grants, "a file is written for a grant that is there"
                        self.files[nonce] = grant
                    case cb.RemoveCdi(nonce):
                        self.files.pop(nonce, None)
                    case cb.Answer(call):
                        answers[call] = ""
                    case cb.Refuse(call, reason):
                        answers[call] = reason
        return answers

    def restart(self, reboot: bool = False) -> None:
        self.killed_after = -1
        if reboot:
            self.grants.clear()
            self.files.clear()
        memory = self.book.memory()
        assert cb.ClaimBook.of(memory).memory() == memory
        self.book = cb.ClaimBook(cb.ClaimRules("boot", APART_NS))
        self.carry_out(cb.Restored(tuple(self.ledger.values()), tuple(self.grants.items())))

    def prepare(self, claim: ClaimRef, shape: int, refuse: bool) -> bool:
        wanted = allocation(claim, shape)
        parts = tuple(
            cb.PartAsk(shares, ASK, Nonce(f"{next(self.numbers):032x}"), GrantId(f"g-{next(self.numbers)}"))
            for shares in parts_of(wanted)
        )  # fmt: skip
        call = next(self.numbers)
        answers = self.carry_out(cb.PrepareAsked(call, wanted, parts, 0.0), refuse)
        if answers[call]:
            return False
        row = self.book.rows[claim.uid]
        names = tuple(part.nonce for part in row.parts)
        if claim.uid in self.told and self.told[claim.uid][0].shares == wanted.shares:
            assert names == self.told[claim.uid][1], "the kubelet keeps the names it was given"
        self.told[claim.uid] = (wanted, names)
        return True

    # --- what happens ---

    @rule(
        claim=st.sampled_from(CLAIMS),
        shape=st.integers(0, 2),
        refuse=st.booleans(),
        kill=st.integers(-1, 6),
    )
    def asked(self, claim: ClaimRef, shape: int, refuse: bool, kill: int) -> None:
        """The kubelet asks; after a kill it asks again."""
        if claim.uid in self.told:  # an allocation does not change while pods use it
            shape = {1: 0, 2: 1}.get(self.told[claim.uid][0].shares[0].memory_bytes // MIB, 2)
        self.killed_after = kill
        try:
            self.prepare(claim, shape, refuse)
        except Killed:
            self.restart()
            assert self.prepare(claim, shape, refuse=False)
        self.killed_after = -1

    @rule(claim=st.sampled_from(CLAIMS), kill=st.integers(-1, 6))
    def given_back(self, claim: ClaimRef, kill: int) -> None:
        self.killed_after = kill
        for _ in range(2):
            try:
                call = next(self.numbers)
                assert self.carry_out(cb.UnprepareAsked(call, claim.uid))[call] == ""
                break
            except Killed:
                self.restart()
        self.killed_after = -1
        self.told.pop(claim.uid, None)
        assert not [one for one in self.grants.values() if one.claim == claim.uid], "nothing stays"
        assert claim.uid not in self.ledger

    @rule(reboot=st.booleans())
    def daemon_restarts(self, reboot: bool) -> None:
        self.restart(reboot)

    @rule(data=st.data())
    def somebody_ends_a_grant(self, data: st.DataObject) -> None:
        if self.grants:
            grant = data.draw(st.sampled_from(sorted(self.grants)))
            del self.grants[grant]
            self.carry_out(cb.GrantEnded(grant))

    @rule()
    def the_ledger_is_lost(self) -> None:
        """The ledger is lost, and running grants restore the claims."""
        self.ledger.clear()
        there = {one.nonce for one in self.grants.values()}
        self.told = {uid: one for uid, one in self.told.items() if there.issuperset(one[1])}
        self.restart()

    @rule(
        gone=st.sets(st.sampled_from([one.uid for one in CLAIMS])),
        after=st.integers(0, 2 * APART_NS),
    )
    def looked(self, gone: set[ClaimUid], after: int) -> None:
        self.now_ns += after
        gone -= self.told.keys()  # what pods use is there
        self.carry_out(cb.Looked(frozenset(gone), self.now_ns))

    # --- what holds ---

    @invariant()
    def one_grant_for_each_part(self) -> None:
        held = [part.grant for row in self.book.rows.values() for part in row.parts if part.grant]
        assert len(held) == len(set(held))
        assert set(held) == self.grants.keys(), "neither lost nor leaked"
        nonces = [one.nonce for one in self.grants.values()]
        assert len(nonces) == len(set(nonces)), "nothing twice"

    @invariant()
    def the_runtime_finds_only_what_lives(self) -> None:
        assert set(self.files.values()) <= self.grants.keys()
        assert self.files.keys() <= self.book.nonces()
        for row in self.book.rows.values():
            if row.state is ClaimState.PREPARED:
                assert all(self.files[part.nonce] == part.grant for part in row.parts)

    @invariant()
    def the_ledger_knows_what_is_known(self) -> None:
        assert self.ledger.keys() <= self.book.rows.keys()
        for uid, row in self.book.rows.items():
            if row.state is ClaimState.PREPARED:
                assert self.ledger[uid] == row

    def teardown(self) -> None:
        if hasattr(self, "book"):
            for claim in CLAIMS:
                self.given_back(claim, -1)
            assert not self.grants
            assert not self.files
            assert not self.ledger
            assert not self.book.rows


Claims.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestClaims = Claims.TestCase

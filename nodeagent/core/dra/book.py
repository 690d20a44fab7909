"""State of each claim that the kubelet requested to prepare: a reducer, like `grants`.

A claim is an *intent* while one of its grants is missing, *prepared* when all its grants exist and
the row is durable, *released* when the kubelet has unprepared it or when two successive looks at
the API server did not find it. A repeated request is answered with the same CDI names, whatever was
lost in between, because the kubelet stores them. Any order of events is legal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import assert_never

from nodeagent.ports.clients import GrantAsk
from nodeagent.ports.dra.claims import (
    ClaimAllocation,
    ClaimRef,
    ClaimState,
    ClaimUid,
    Part,
    PreparedClaim,
)
from nodeagent.ports.kubelet import Nonce
from nodeagent.ports.ledger import ContainerRef
from nodeagent.units import ANY_POD, GrantId


@dataclass(frozen=True, slots=True)
class ClaimRules:
    boot_id: str
    gone_apart_ns: int
    """Minimum time between the two looks that must both find a claim gone."""


@dataclass(frozen=True, slots=True)
class PartAsk:
    """One grant that a claim needs. `nonce` and `grant` are drawn outside, and used only if the
    claim has none yet."""

    shares: tuple[int, ...]
    ask: GrantAsk
    nonce: Nonce
    grant: GrantId


# --- events -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PrepareAsked:
    call: int
    allocation: ClaimAllocation
    parts: tuple[PartAsk, ...]
    at_unix_s: float
    driver: str = ""


@dataclass(frozen=True, slots=True)
class GrantMade:
    call: int
    grant: GrantId


@dataclass(frozen=True, slots=True)
class GrantRefused:
    call: int
    reason: str


@dataclass(frozen=True, slots=True)
class UnprepareAsked:
    call: int
    claim: ClaimUid


@dataclass(frozen=True, slots=True)
class GrantEnded:
    """A grant ended outside the book: an operator released it, or its region was lost."""

    grant: GrantId


@dataclass(frozen=True, slots=True)
class Looked:
    """A look at the API server: claims that no longer exist, or are allocated elsewhere, and have
    no process on the GPU."""

    gone: frozenset[ClaimUid]
    now_ns: int


@dataclass(frozen=True, slots=True)
class Restored:
    """The ledger's rows after a restart, and the claims' grants that still live."""

    rows: tuple[PreparedClaim, ...]
    grants: tuple[tuple[GrantId, ContainerRef], ...]


Event = PrepareAsked | GrantMade | GrantRefused | UnprepareAsked | GrantEnded | Looked | Restored


# --- instructions -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Commit:
    """Make these rows durable before carrying out what follows."""

    rows: tuple[PreparedClaim, ...]


@dataclass(frozen=True, slots=True)
class MakeGrant:
    """Answered by GrantMade or GrantRefused."""

    call: int
    grant: GrantId
    ask: GrantAsk
    container: ContainerRef
    paused: bool


@dataclass(frozen=True, slots=True)
class EndGrant:
    grant: GrantId


@dataclass(frozen=True, slots=True)
class WriteCdi:
    nonce: Nonce
    grant: GrantId
    driver: str
    claim: str
    """The claim's name, for messages."""


@dataclass(frozen=True, slots=True)
class RemoveCdi:
    nonce: Nonce


@dataclass(frozen=True, slots=True)
class Answer:
    """The kubelet's call succeeded: the claim is prepared, or unprepared."""

    call: int


@dataclass(frozen=True, slots=True)
class Refuse:
    """The kubelet's call failed; the kubelet retries."""

    call: int
    reason: str


Instruction = Commit | MakeGrant | EndGrant | WriteCdi | RemoveCdi | Answer | Refuse


@dataclass(slots=True)
class _Preparing:
    event: PrepareAsked
    waits: dict[GrantId, int]
    """Grants that are being made, each with the index of its part."""


@dataclass(frozen=True, slots=True)
class ClaimMemory:
    """The complete state of a book."""

    rules: ClaimRules
    rows: tuple[PreparedClaim, ...]
    preparing: tuple[tuple[PrepareAsked, tuple[tuple[GrantId, int], ...]], ...]
    missed: tuple[tuple[ClaimUid, int], ...]


class ClaimBook:
    def __init__(self, rules: ClaimRules) -> None:
        self._rules = rules
        self.rows: dict[ClaimUid, PreparedClaim] = {}
        self._preparing: dict[int, _Preparing] = {}
        self._missed: dict[ClaimUid, int] = {}
        """Time in ns at which a claim was first found deleted."""

    def handle(self, event: Event, now_ns: int = 0) -> list[Instruction]:
        """Apply an event and return the instructions. Only Looked depends on the time, and it
        carries its own."""
        match event:
            case PrepareAsked():
                return self._prepare_asked(event)
            case GrantMade():
                return self._grant_made(event)
            case GrantRefused():
                return self._grant_refused(event)
            case UnprepareAsked():
                return [*self._release(event.claim), Answer(event.call)]
            case GrantEnded():
                return self._grant_ended(event)
            case Looked():
                return self._looked(event)
            case Restored():
                return self._restored(event)
            case _:
                assert_never(event)

    def memory(self) -> ClaimMemory:
        return ClaimMemory(
            self._rules,
            tuple(self.rows.values()),
            tuple((one.event, tuple(one.waits.items())) for one in self._preparing.values()),
            tuple(self._missed.items()),
        )

    @classmethod
    def of(cls, memory: ClaimMemory) -> ClaimBook:
        """Rebuild a book from its recorded state."""
        book = cls(memory.rules)
        book.rows = {row.claim.uid: row for row in memory.rows}
        book._preparing = {
            event.call: _Preparing(event, dict(waits)) for event, waits in memory.preparing
        }
        book._missed = dict(memory.missed)
        return book

    # --- questions ----------------------------------------------------------------------------

    def is_ready(self, allocation: ClaimAllocation) -> bool:
        """True if the claim is prepared with exactly this allocation and has all its grants."""
        row = self.rows.get(allocation.claim.uid)
        return (
            row is not None
            and row.state is ClaimState.PREPARED
            and row.allocation == allocation
            and all(part.grant is not None for part in row.parts)
        )

    def claim_of(self, grant: GrantId) -> ClaimUid | None:
        for uid, row in self.rows.items():
            if any(part.grant == grant for part in row.parts):
                return uid
        return None

    def nonces(self) -> frozenset[Nonce]:
        return frozenset(part.nonce for row in self.rows.values() for part in row.parts)

    def drivers(self) -> frozenset[str]:
        return frozenset(row.driver for row in self.rows.values() if row.driver)

    # --- preparing ----------------------------------------------------------------------------

    def _prepare_asked(self, event: PrepareAsked) -> list[Instruction]:
        claim = event.allocation.claim
        row = self.rows.get(claim.uid)
        if any(one.event.allocation.claim.uid == claim.uid for one in self._preparing.values()):
            return [Refuse(event.call, f"claim {claim} is being prepared already")]
        out: list[Instruction] = []
        if row is not None and not _is_for(row, event):
            # The claim was allocated again, so the grants of its earlier allocation end.
            out += self._end_parts(row)
            row = None
        if row is None:
            row = PreparedClaim(
                claim,
                event.allocation,
                tuple(Part(one.nonce, one.shares) for one in event.parts),
                ClaimState.INTENT,
                self._rules.boot_id,
                event.at_unix_s,
                event.driver,
            )
        else:
            row = replace(
                row,
                allocation=event.allocation,
                parts=tuple(
                    replace(part, shares=one.shares)
                    for part, one in zip(row.parts, event.parts, strict=True)
                ),
                state=ClaimState.INTENT
                if any(part.grant is None for part in row.parts)
                else ClaimState.PREPARED,
                boot_id=self._rules.boot_id,
                driver=row.driver or event.driver,
            )
        self._missed.pop(claim.uid, None)
        changed = row != self.rows.get(claim.uid)
        self.rows[claim.uid] = row
        waits = {
            one.grant: index
            for index, (part, one) in enumerate(zip(row.parts, event.parts, strict=True))
            if part.grant is None
        }
        if not waits:
            commit = [Commit((row,))] if changed else []
            return [*out, *commit, *_writes(row), Answer(event.call)]
        # The row is written when all grants exist: until then each grant's own record has the claim
        # and the nonce, and the kubelet has had no answer.
        self._preparing[event.call] = _Preparing(event, waits)
        config = event.allocation.shares[0].config
        return out + [
            MakeGrant(
                event.call,
                grant,
                event.parts[index].ask,
                _reference(event.allocation, row.parts[index].nonce),
                config.paused,
            )
            for grant, index in waits.items()
        ]

    def _grant_made(self, event: GrantMade) -> list[Instruction]:
        preparing = self._preparing.get(event.call)
        index = preparing.waits.pop(event.grant, None) if preparing is not None else None
        if preparing is None or index is None:
            return [EndGrant(event.grant)]  # The claim was released meanwhile.
        uid = preparing.event.allocation.claim.uid
        row = self.rows[uid]
        parts = list(row.parts)
        parts[index] = replace(parts[index], grant=event.grant)
        done = not preparing.waits
        row = replace(
            row,
            parts=tuple(parts),
            state=ClaimState.PREPARED if done else row.state,
        )
        self.rows[uid] = row
        if not done:
            return []
        del self._preparing[event.call]
        return [Commit((row,)), *_writes(row), Answer(event.call)]

    def _grant_refused(self, event: GrantRefused) -> list[Instruction]:
        """End the grants made for this call: a claim gets all its grants or none. Grants that it
        had before stay."""
        preparing = self._preparing.pop(event.call, None)
        if preparing is None:
            return []
        asked = {one.grant for one in preparing.event.parts}
        uid = preparing.event.allocation.claim.uid
        row = self.rows[uid]
        made = [part.grant for part in row.parts if part.grant in asked and part.grant is not None]
        self.rows[uid] = replace(
            row,
            parts=tuple(
                replace(part, grant=None) if part.grant in asked else part for part in row.parts
            ),
        )
        return [*(EndGrant(grant) for grant in made), Refuse(event.call, event.reason)]

    # --- the end ------------------------------------------------------------------------------

    def _release(self, claim: ClaimUid) -> list[Instruction]:
        """Release a claim. Its CDI files go first, so that nothing starts in a grant that is
        ending."""
        self._missed.pop(claim, None)
        out: list[Instruction] = []
        for call, one in list(self._preparing.items()):
            if one.event.allocation.claim.uid == claim:
                del self._preparing[call]
                out.append(Refuse(call, "the claim was unprepared meanwhile"))
        row = self.rows.pop(claim, None)
        if row is None:
            return out
        out += self._end_parts(row)
        return [*out, Commit((replace(row, state=ClaimState.RELEASED),))]

    @staticmethod
    def _end_parts(row: PreparedClaim) -> list[Instruction]:
        out: list[Instruction] = [RemoveCdi(part.nonce) for part in row.parts]
        return out + [EndGrant(part.grant) for part in row.parts if part.grant is not None]

    def _grant_ended(self, event: GrantEnded) -> list[Instruction]:
        uid = self.claim_of(event.grant)
        if uid is None:
            return []
        row = self.rows[uid]
        lost = [part for part in row.parts if part.grant == event.grant]
        row = replace(
            row,
            state=ClaimState.INTENT,
            parts=tuple(
                replace(part, grant=None) if part.grant == event.grant else part
                for part in row.parts
            ),
        )
        self.rows[uid] = row
        return [*(RemoveCdi(part.nonce) for part in lost), Commit((row,))]

    def _looked(self, event: Looked) -> list[Instruction]:
        out: list[Instruction] = []
        for uid in list(self.rows):
            if uid not in event.gone:
                self._missed.pop(uid, None)
                continue
            first_ns = self._missed.setdefault(uid, event.now_ns)
            if event.now_ns - first_ns >= self._rules.gone_apart_ns > 0:
                out += self._release(uid)
        return out

    # --- after a restart ----------------------------------------------------------------------

    def _restored(self, event: Restored) -> list[Instruction]:
        live = dict(event.grants)
        changed: list[PreparedClaim] = []
        out: list[Instruction] = []
        for row in event.rows:
            parts = tuple(
                part
                if part.grant in live
                else replace(part, grant=_found(live, row.claim.uid, part.nonce))
                for part in row.parts
            )
            if parts != row.parts:
                done = all(part.grant is not None for part in parts)
                row = replace(row, parts=parts, state=row.state if done else ClaimState.INTENT)
                changed.append(row)
            self.rows[row.claim.uid] = row
        in_rows = {part.grant for row in self.rows.values() for part in row.parts}
        orphans: dict[ClaimUid, list[tuple[GrantId, ContainerRef]]] = {}
        for grant, ref in event.grants:
            if grant not in in_rows:
                orphans.setdefault(ClaimUid(ref.claim), []).append((grant, ref))
        for uid, grants in orphans.items():
            # The grant was made, and its claim released before that was written.
            if uid in self.rows:
                out += [EndGrant(grant) for grant, _ in grants]
            else:
                self.rows[uid] = self._taken_over(uid, grants)
                changed.append(self.rows[uid])
        for row in self.rows.values():
            if row.state is ClaimState.PREPARED:
                out += _writes(row)
        return [*([Commit(tuple(changed))] if changed else []), *out]

    def _taken_over(
        self, uid: ClaimUid, grants: Sequence[tuple[GrantId, ContainerRef]]
    ) -> PreparedClaim:
        """Rebuild the row of a claim of which only the grants are left; containers may run in
        them."""
        first = grants[0][1]
        return PreparedClaim(
            ClaimRef(first.namespace, first.container, uid),
            None,
            tuple(Part(Nonce(ref.nonce), (), grant) for grant, ref in grants),
            ClaimState.INTENT,
            self._rules.boot_id,
            0.0,
        )


def _found(live: Mapping[GrantId, ContainerRef], claim: ClaimUid, nonce: Nonce) -> GrantId | None:
    """The grant that was made for this part just before the daemon ended and is not in the row
    yet."""
    for grant, ref in live.items():
        if ref.claim == claim and ref.nonce == nonce:
            return grant
    return None


def _is_for(row: PreparedClaim, event: PrepareAsked) -> bool:
    if row.allocation is None:
        return len(row.parts) == len(event.parts)
    return row.allocation.shares == event.allocation.shares and len(row.parts) == len(event.parts)


def _writes(row: PreparedClaim) -> list[Instruction]:
    return [
        WriteCdi(part.nonce, part.grant, row.driver, row.claim.name)
        for part in row.parts
        if part.grant is not None
    ]


def _reference(allocation: ClaimAllocation, nonce: Nonce) -> ContainerRef:
    claim, pod = allocation.claim, allocation.pod
    return ContainerRef(
        pod_uid=pod.uid if pod is not None else ANY_POD,
        container=claim.name,
        device_ids=(),
        namespace=claim.namespace,
        pod=pod.name if pod is not None else "",
        claim=claim.uid,
        nonce=nonce,
    )

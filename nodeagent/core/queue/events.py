"""What the queue controller and those who wait here bring about, and what is to be done: the
vocabulary of the queue's reducer. Frozen values, so that a recorded run replays.
"""

from __future__ import annotations

from dataclasses import dataclass

from nodeagent.ports.queue import (
    Decision,
    Done,
    Fence,
    Welcome,
    Work,
    WorkKey,
    WorkState,
)
from nodeagent.units import GrantId

# --- events -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Welcomed:
    """A new session. `sent_ns` is when we asked for it: the lease runs from there."""

    welcome: Welcome
    sent_ns: int
    told: tuple[Work, ...] = ()
    """What we said we hold."""


@dataclass(frozen=True, slots=True)
class Renewed:
    """A report was answered."""

    term: int
    epoch: int
    lease_s: float
    sent_ns: int
    proof: str = ""


@dataclass(frozen=True, slots=True)
class Decided:
    term: int
    revision: int
    decision: Decision | None
    """None: a sign of life."""
    proof: str = ""


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The session is over; the lease goes on until it ends."""


@dataclass(frozen=True, slots=True)
class WaiterCame:
    """A process on this node waits for the workload."""

    workload: str


@dataclass(frozen=True, slots=True)
class WaiterLeft:
    workload: str


@dataclass(frozen=True, slots=True)
class GrantMade:
    key: WorkKey
    grant: GrantId


@dataclass(frozen=True, slots=True)
class GrantRefused:
    key: WorkKey
    reason: str


@dataclass(frozen=True, slots=True)
class ResumeRefused:
    """A paused grant cannot go on: others have the share it lent."""

    grant: GrantId
    reason: str


@dataclass(frozen=True, slots=True)
class Spilled:
    """Paused, its memory on the host."""

    grant: GrantId


@dataclass(frozen=True, slots=True)
class SpillRefused:
    """Its memory is where it was: it cannot make way so."""

    grant: GrantId
    reason: str


@dataclass(frozen=True, slots=True)
class Returned:
    """It goes on, its memory where it was."""

    grant: GrantId


@dataclass(frozen=True, slots=True)
class ReturnRefused:
    """It does not go on: `waits`, its room is taken; else it never will."""

    grant: GrantId
    reason: str
    waits: bool


@dataclass(frozen=True, slots=True)
class GrantEnded:
    grant: GrantId


@dataclass(frozen=True, slots=True)
class Evicted:
    """The node itself ends it, for what it did here."""

    grant: GrantId
    reason: str


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The controller has heard what became of the work."""

    key: WorkKey
    uid: str
    attempt: int
    state: WorkState
    known: bool


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed."""


Event = (
    Welcomed
    | Renewed
    | Decided
    | Disconnected
    | WaiterCame
    | WaiterLeft
    | GrantMade
    | GrantRefused
    | ResumeRefused
    | Spilled
    | SpillRefused
    | Returned
    | ReturnRefused
    | GrantEnded
    | Evicted
    | Acknowledged
    | Ticked
)

# --- instructions -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StoreFence:
    fence: Fence


@dataclass(frozen=True, slots=True)
class StoreWork:
    """Make it durable before carrying out what follows."""

    work: Work


@dataclass(frozen=True, slots=True)
class DropWork:
    key: WorkKey
    done: Done | None


@dataclass(frozen=True, slots=True)
class Start:
    """Answered by GrantMade or GrantRefused."""

    work: Work


@dataclass(frozen=True, slots=True)
class SetPaused:
    """Answered by ResumeRefused where it cannot go on."""

    grant: GrantId
    paused: bool
    lends: bool = False
    """Others get its share of the time meanwhile."""


@dataclass(frozen=True, slots=True)
class SpillGrant:
    """Answered by Spilled or SpillRefused."""

    grant: GrantId


@dataclass(frozen=True, slots=True)
class ReturnGrant:
    """Answered by Returned or ReturnRefused."""

    grant: GrantId


@dataclass(frozen=True, slots=True)
class Stop:
    """SIGTERM, and SIGKILL after the grace. Answered by GrantEnded."""

    grant: GrantId
    grace_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class Tell:
    """Say to the controller what became of the work. Answered by Acknowledged; a message that is
    lost is made good by the next connection, which tells everything."""

    work: Work


@dataclass(frozen=True, slots=True)
class Reconnect:
    reason: str


Instruction = (
    StoreFence
    | StoreWork
    | DropWork
    | Start
    | SetPaused
    | SpillGrant
    | ReturnGrant
    | Stop
    | Tell
    | Reconnect
)

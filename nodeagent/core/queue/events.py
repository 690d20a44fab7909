"""Events and instructions of the queue's reducer: messages of the queue controller, processes that
wait on this node, and results. They are frozen values, so that a recorded run can be replayed."""

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
    """A new session. `sent_ns` is the time of our request: the lease runs from there."""

    welcome: Welcome
    sent_ns: int
    told: tuple[Work, ...] = ()
    """Works that we reported with the request."""


@dataclass(frozen=True, slots=True)
class Renewed:
    """The answer to a report."""

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
    """The decision; None for a keep-alive."""
    proof: str = ""


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The session is over; the lease continues until it expires."""


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
    """A paused grant cannot resume, because others use the share that it lent."""

    grant: GrantId
    reason: str


@dataclass(frozen=True, slots=True)
class Spilled:
    """The grant is paused and its memory is on the host."""

    grant: GrantId


@dataclass(frozen=True, slots=True)
class SpillRefused:
    """The spill failed; the grant's memory is where it was."""

    grant: GrantId
    reason: str


@dataclass(frozen=True, slots=True)
class Returned:
    """The grant runs again with its memory on its GPUs."""

    grant: GrantId


@dataclass(frozen=True, slots=True)
class ReturnRefused:
    """The return failed: for now if `waits` (its room is taken), else for good."""

    grant: GrantId
    reason: str
    waits: bool


@dataclass(frozen=True, slots=True)
class GrantEnded:
    grant: GrantId


@dataclass(frozen=True, slots=True)
class Evicted:
    """The node itself ends the work because of a suspicion."""

    grant: GrantId
    reason: str


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The controller has received the work's state."""

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
    """Answered by ResumeRefused if it cannot resume."""

    grant: GrantId
    paused: bool
    lends: bool = False
    """True if others may use its share of time meanwhile."""


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
    """SIGTERM, and SIGKILL after the grace period. Answered by GrantEnded."""

    grant: GrantId
    grace_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class Tell:
    """Report the work's state to the controller. Answered by Acknowledged; a lost message is
    repaired by the next connection, which reports everything."""

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

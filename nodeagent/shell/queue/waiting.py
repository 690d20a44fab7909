"""Processes that wait for their workload: their submissions, and the steps reported to them."""

from __future__ import annotations

import asyncio
import re
import uuid
from dataclasses import dataclass, field, replace
from typing import Final

from nodeagent.ports.clients import GrantAsk, MemoryAsk, Peer, RefusalKind, Refused, Waiting
from nodeagent.ports.processes import ProcessHandle
from nodeagent.ports.queue import QueueStatus, Submission, Work
from nodeagent.units import GrantId

LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
PART: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?")

Step = Waiting | Refused | GrantId


@dataclass(slots=True, eq=False)
class Waiter:
    """A process that waits for its workload to start."""

    peer: Peer
    ask: GrantAsk
    handle: ProcessHandle
    """The waiter's own: that of the peer is closed with its connection, possibly before the wait
    ends."""
    steps: asyncio.Queue[Step] = field(default_factory=asyncio.Queue)
    workload: str = ""
    uid: str = ""
    granted: bool = False
    place: Waiting | None = None
    """The place in line that was reported last."""

    def report(self, step: Step) -> None:
        if step != self.place:
            self.place = step if isinstance(step, Waiting) else None
            self.steps.put_nowait(step)


def submission_of(waiter: Waiter, namespace: str, user: str) -> Submission:
    """The submission of a waiter. `namespace` is used if it names none; `user` is its user's
    name."""
    queue = waiter.ask.queue
    assert queue is not None
    token = str(uuid.uuid4())
    # The name people gave it, made unique, where it can be part of a Kubernetes name.
    given = waiter.ask.name if PART.fullmatch(waiter.ask.name) else "run"
    name = f"{given}-{token[:8]}"
    return Submission(
        name=name,
        namespace=queue.namespace or namespace,
        queue=queue.queue,
        ask=waiter.ask,
        user=user,
        token=token,
        priority_class=queue.priority_class,
        preempted=queue.preempted,
        max_execution_s=queue.max_execution_s,
    )


def ask_for(work: Work, asked: GrantAsk) -> GrantAsk:
    """The local request for a decision: exactly its GPUs, without waiting."""
    gpus = work.decision.gpus
    gang = asked.gang or work.decision.nodes > 1
    if not gpus:
        return replace(asked, gang=gang, queue=None, wait_s=0.0)
    return replace(
        asked,
        gang=gang,
        gpus=len(gpus),
        gpu_uuids=tuple(one.gpu for one in gpus),
        memory=MemoryAsk(amount_bytes=gpus[0].memory_bytes),
        share_ppm=gpus[0].share_ppm,
        queue=None,
        wait_s=0.0,
    )


def cut_off(workload: str, why: object) -> Waiting:
    text = f"the queue does not answer; the place in line is kept ({why})"
    return Waiting(0, text, workload=workload)


def step_of(status: QueueStatus) -> Waiting | Refused:
    if status.is_over:
        text = status.message or f"the workload is {status.phase.lower()}"
        return Refused(RefusalKind.UNAVAILABLE, f"the queue: {status.workload}: {text}")
    reason = f"{status.phase}: {status.message or status.reason}"
    return Waiting(status.position, reason, status.estimate_s, status.waiting, status.workload)

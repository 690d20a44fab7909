"""Decides what becomes of a Workload in the workers, and what is written here about it. No I/O.

A Workload that waits for the check is copied to the workers; the first one that admits its copy
gets the job, and the other copies are deleted. From then on the job's status is copied back. The
same documents give the same decision, and one that asks for nothing once nothing remains to be
done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final

from queuecontroller.cluster.admissionchecks.states import Answer, State, checks_of, state_of
from queuecontroller.cluster.cache.job_context import KINDS
from queuecontroller.cluster.cache.multikueue import (
    ALL_AT_ONCE,
    CONTROLLER,
    INCREMENTAL,
    ONE_AT_A_TIME_S,
    ROUND,
    ROUND_S,
    MultiKueueSettings,
)
from queuecontroller.cluster.cache.objects import (
    Document,
    condition_of,
    has_condition,
    is_leaving,
    seconds_of,
)
from queuecontroller.cluster.multikueue.copies import (
    gate_opened_at,
    is_in_step,
    job_owner,
    kind_of_job,
    managed_by,
)
from queuecontroller.frameworks import is_elastic
from queuecontroller.scheduler.model.reasons import (
    ADMITTED,
    BLOCKED_ON_PREEMPTION_GATES,
    EVICTED,
    FINISHED,
)

LOST: Final = "Reserving remote lost"
OUT_OF_SYNC: Final = "Remote workload out of sync"
CLOCKS_DIFFER_S: Final = 60.0
"""A gate that was opened later than that from now was not opened by a manager."""
GONE: Final = "Reserving remote no longer exists or is not admitted"


class Want(Enum):
    """State of a worker that the manager aims at for one Workload."""

    NOTHING = auto()
    COPY = auto()
    """A copy of the Workload."""
    UNGATED_COPY = auto()
    """A copy of the Workload that may preempt there: its preemption gate is to be opened."""
    JOB = auto()
    """A copy of the Workload and one of its job."""


@dataclass(frozen=True, slots=True)
class Worker:
    """Facts about one worker and one Workload."""

    lost_s: float | None = None
    """Seconds for which it has been unreachable; None: it is reachable."""
    copy: Document | None = None
    job: Document | None = None
    refusal: str = ""
    """Why its last write failed; "" if it did not."""


@dataclass(frozen=True, slots=True)
class Decision:
    want: Mapping[str, Want] = field(default_factory=dict)
    """Wanted state by worker; a worker without one is left alone."""
    answer: Answer | None = None
    cluster: str | None = None
    """The worker that has it: to be written if it is not."""
    nominated: tuple[str, ...] | None = None
    """Workers to be written as nominated; None: they stay."""
    is_home: bool = False
    """True if no worker has it any more: the fields that name workers are cleared."""
    status_of: str | None = None
    """The worker whose job's status is copied here."""
    finished: tuple[str, str] | None = None
    """Reason and message of its end in the worker."""
    again_s: float | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """All that one decision depends on."""

    workload: Document | None
    job: Document | None
    check: str
    """Name of its check of this controller; "" if it has none."""
    workers: Mapping[str, Worker]
    """Workers of the check's configuration, and others that have a copy."""
    configured: Sequence[str]
    """Workers of the check's configuration."""
    since_round_s: float = 0.0
    """Seconds since workers were last nominated for it."""
    others_ready: bool = True
    """True if all its other checks are Ready."""
    chosen: str = ""
    """The worker that was to get its job last; "" if none was."""
    now_s: float = 0.0
    """Seconds since the epoch."""


def decide(facts: Facts, settings: MultiKueueSettings) -> Decision:
    workload = facts.workload
    if workload is None or is_leaving(workload):
        return Decision(_nothing(facts))
    if not facts.check:
        return Decision()
    if has_condition(workload, FINISHED):
        return Decision(_nothing(facts))
    check = checks_of(workload).get(facts.check) or {}
    holds = bool((workload.get("status") or {}).get("admission"))
    if not holds or has_condition(workload, EVICTED) or state_of(check) == State.REJECTED:
        return Decision(_nothing(facts), is_home=not holds)
    if state_of(check) == State.RETRY:
        return Decision()  # It is evicted for that next.
    if why := _why_not(workload, facts.job):
        return Decision(_nothing(facts), Answer(State.REJECTED, why))
    if facts.job is None:
        return Decision()
    if (over := _first(facts, FINISHED)) is not None:
        found = condition_of(facts.workers[over].copy or {}, FINISHED)
        end = str(found["reason"]), str(found["message"])
        return Decision(status_of=over, finished=end)
    if state_of(check) == State.READY:
        return _keep(facts, workload, settings)
    return _find(facts, workload, check, settings)


def _why_not(workload: Document, job: Document | None) -> str:
    owner = job_owner(workload)
    kind = kind_of_job(workload)
    if kind is None:
        if not owner:
            return "No multikueue adapter found"
        group, _, version = str(owner.get("apiVersion") or "").rpartition("/")
        named = f"{group}/{version}, Kind={owner.get('kind')}"
        return f'No multikueue adapter found for owner kind "{named}"'
    if job is None:
        return ""
    framework = KINDS[kind]
    found = managed_by(framework, job)
    if found == CONTROLLER:
        return "Elastic jobs are not dispatched to other clusters" if is_elastic(job) else ""
    path = ".".join(str(one) for one in framework.managed_by)
    return f'The owner is not managed by Kueue: Expecting {path} to be "{CONTROLLER}" not "{found}"'


def _nothing(facts: Facts) -> dict[str, Want]:
    return {
        name: Want.NOTHING
        for name, one in facts.workers.items()
        if one.lost_s is None and (one.copy is not None or one.job is not None)
    }


def _first(facts: Facts, condition: str) -> str | None:
    """Return the reachable worker whose copy has the condition for the longest time."""
    return min(_each(facts, condition), default=("", None))[1]


def _each(facts: Facts, condition: str) -> list[tuple[str, str]]:
    """Return since when the copies have the condition, and the names of their workers."""
    return [
        (str(condition_of(one.copy, condition).get("lastTransitionTime") or ""), name)
        for name, one in facts.workers.items()
        if name in facts.configured and one.lost_s is None
        if one.copy is not None and has_condition(one.copy, condition)
    ]


def _winner(facts: Facts) -> str | None:
    """Return the worker that gets the job: the first that admits its copy, from then on.

    Another one may be seen later and not have been later: times are in whole seconds. The job would
    be taken from the worker whose name is being written as the Workload's cluster.
    """
    admitted = _each(facts, ADMITTED)
    if any(name == facts.chosen for _, name in admitted):
        return facts.chosen
    with_job = [one for one in admitted if facts.workers[one[1]].job is not None]
    return min(with_job or admitted, default=("", None))[1]


def _keep(facts: Facts, workload: Document, settings: MultiKueueSettings) -> Decision:
    """Decide for a Workload that a worker has: it stays there, as long as it is admitted there."""
    name = str((workload.get("status") or {}).get("clusterName") or "")
    one = facts.workers.get(name)
    others = {other: want for other, want in _nothing(facts).items() if other != name}
    if one is None or name not in facts.configured:
        # Its cluster was removed from the configuration, or is not named at all.
        return Decision(others, Answer(State.RETRY, GONE))
    if one.lost_s is not None:
        left_s = settings.worker_lost_s - one.lost_s
        if left_s > 0:
            return Decision(others, again_s=left_s)
        return Decision(others, Answer(State.RETRY, LOST))
    if one.copy is None:
        return Decision(others, Answer(State.RETRY, GONE))
    if has_condition(one.copy, EVICTED):
        text = (
            f'Workload evicted on worker cluster: "{name}", resetting for re-admission.'
            f' Previously: "{State.READY}"'
        )
        return Decision(others, Answer(State.RETRY, text))
    if not is_in_step(workload, one.copy):
        return Decision({**others, name: Want.NOTHING}, Answer(State.RETRY, OUT_OF_SYNC))
    if not has_condition(one.copy, ADMITTED) or is_leaving(one.copy):
        return Decision(others, Answer(State.RETRY, GONE))
    return Decision({**others, name: Want.JOB}, status_of=name)


def _find(
    facts: Facts, workload: Document, check: Mapping[str, Any], settings: MultiKueueSettings
) -> Decision:
    """Decide for a Workload that waits for a worker."""
    if not facts.others_ready:
        return Decision(_nothing(facts))
    found = _winner(facts)
    if found is not None:
        one = facts.workers[found]
        if one.copy is not None and not is_in_step(workload, one.copy):
            return Decision({found: Want.NOTHING})
        others = {other: want for other, want in _nothing(facts).items() if other != found}
        want = {**others, found: Want.JOB}
        if one.job is None:
            return Decision(want, _told(check, facts))
        text = f'The workload was admitted on "{found}"'
        return Decision(want, Answer(State.READY, text), cluster=found, status_of=found)
    nominated, again_s = _nominated(facts, workload, settings)
    want = {name: want for name, want in _nothing(facts).items() if name not in nominated}
    want |= {
        name: Want.COPY
        for name in nominated
        if name in facts.workers and facts.workers[name].lost_s is None
    }
    if settings.gates_preemption:
        opened, next_s = _to_open(facts)
        if want.get(opened) is Want.COPY:
            want[opened] = Want.UNGATED_COPY
        again_s = min((one for one in (again_s, next_s) if one is not None), default=None)
    before = tuple((workload.get("status") or {}).get("nominatedClusterNames") or ())
    changed = None if sorted(before) == sorted(nominated) else nominated
    return Decision(want, _told(check, facts), nominated=changed, again_s=again_s)


def _to_open(facts: Facts) -> tuple[str, float | None]:
    """Return the worker whose copy may preempt from now on, "" if none, and the seconds until the
    next one may: of the copies that wait for that, the one that has waited for the longest time.

    Only one worker ends others' work for a Workload at a time. One that does not admit it
    nevertheless is not waited for any longer than ONE_AT_A_TIME_S.
    """
    left_s = 0.0
    for one in facts.workers.values():
        opened_s = seconds_of(_opened_at(one))
        if opened_s is not None and opened_s <= facts.now_s + CLOCKS_DIFFER_S:
            left_s = max(left_s, opened_s + ONE_AT_A_TIME_S - facts.now_s)
    waiting = [
        (since, name)
        for since, name in _each(facts, BLOCKED_ON_PREEMPTION_GATES)
        if not _opened_at(facts.workers[name])
    ]
    if not waiting:
        return "", None
    return ("", left_s) if left_s > 0 else (min(waiting)[1], ONE_AT_A_TIME_S)


def _nominated(
    facts: Facts, workload: Document, settings: MultiKueueSettings
) -> tuple[tuple[str, ...], float | None]:
    """Return the workers that the Workload is offered to, and the seconds until that changes."""
    before = tuple((workload.get("status") or {}).get("nominatedClusterNames") or ())
    if settings.dispatcher == ALL_AT_ONCE:
        reachable = {
            name
            for name in facts.configured
            if name in facts.workers and facts.workers[name].lost_s is None
        }
        kept = {name for name in before if name in facts.configured}
        return tuple(sorted(reachable | kept)), None
    kept_now = tuple(name for name in before if name in facts.configured)
    if settings.dispatcher != INCREMENTAL:
        return kept_now, None
    more = sorted(set(facts.configured) - set(kept_now))
    if not more:
        return kept_now, None
    if kept_now and facts.since_round_s < ROUND_S:
        return kept_now, ROUND_S - facts.since_round_s
    return (*kept_now, *more[:ROUND]), ROUND_S


def _told(check: Mapping[str, Any], facts: Facts) -> Answer | None:
    """Return an answer with what the workers refused, which stays until they do not."""
    refusals = [
        f"{name}: {one.refusal}"
        for name, one in sorted(facts.workers.items())
        if one.refusal and one.lost_s is None
    ]
    if refusals:
        return Answer(State.PENDING, "; ".join(refusals))
    return None


def _opened_at(worker: Worker) -> str:
    return gate_opened_at(worker.copy) if worker.copy is not None else ""

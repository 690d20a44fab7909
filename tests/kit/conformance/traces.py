"""Plays whole runs recorded beside Kueue's scheduler and says where our engine parts from it.

    python -m tests.kit.conformance.traces [-v] FILE...

A file has one JSON object a line: `name`, `scenario` (objects, and workloads with `at` and `runs`
in seconds) and `kueue`, what Kueue did with it: `trace` (`t`, `op` A admitted, P preempted or F
finished, `w`, and what was assigned or why) and `livelock_at`. Files that end in .gz or
.xz are unpacked.

Rules of a run, as the recording had them: time is in whole seconds; at each, ends come before
arrivals, and then cycles run until nothing more is decided; who is preempted stops at once and
begins anew later. The two are compared second by second, as sets, until the first second in which
either preempts and admits for ever. A difference is explained where what our engine did there is
one of two things that Kueue is known to lack, see MIXED_PRICE and CIRCLING.

Exit status 0 when every run is equal or explained, 1 when one differs, 2 when a file cannot be
used.
"""

from __future__ import annotations

import argparse
import heapq
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from lzma import LZMAError
from pathlib import Path
from typing import Any, Final

from queuecontroller.kueueapi.manifests import (
    ManifestError,
    read_cluster_queue,
    read_cohort,
    read_flavor,
    read_local_queue,
    read_workload,
)
from queuecontroller.scheduler.model.assignment import Mode
from queuecontroller.scheduler.model.decisions import CycleResult, Preempted, QuotaReserved
from queuecontroller.scheduler.model.objects import FungibilityPreference, Workload, WorkloadKey
from queuecontroller.scheduler.model.settings import EngineSettings, FairPreemptionStrategy
from queuecontroller.scheduler.model.workload_info import WorkloadInfo
from queuecontroller.scheduler.scheduler import Scheduler
from tests.kit.conformance.recorded import open_text

SECOND_NS: Final = 1_000_000_000
MAX_CYCLES: Final = 1000
"""In one second; no scenario has a tenth as many workloads that could be decided on."""
QUIET_CYCLES: Final = 5
"""So many in a row that change nothing end a second, as in the recording; who tries its flavors in
turns is at another of them after each."""

Event = tuple[str, str, str]
"""Operation, workload, and what was assigned or why."""


class Verdict(StrEnum):
    EQUAL = "equal"
    EXPLAINED = "explained"
    DIFFERS = "differs"


@dataclass(frozen=True, slots=True)
class Outcome:
    verdict: Verdict
    details: tuple[str, ...] = ()
    because: str = ""
    """Why a difference is none of ours."""


MIXED_PRICE: Final = (
    "under PreemptionOverBorrowing Kueue never serves a head that borrows one resource and preempts"
    " for another: the flavor's price is that of the borrowed one, and then its targets are missing"
)
CIRCLING: Final = (
    "Kueue tries the flavors of a head with several pod sets in turns for ever and looks at nobody"
    " behind it; ours is set aside when its search comes to the same place again"
)


@dataclass(slots=True)
class Run:
    """Record of one run: its events by second."""

    events: dict[int, Counter[Event]] = field(default_factory=dict)
    livelock_at: int | None = None
    mixed: dict[str, int] = field(default_factory=dict)
    """Workloads that preempted at a mixed price, see MIXED_PRICE, and since when."""
    circling: dict[str, int] = field(default_factory=dict)
    """Workloads whose search for flavors was ended for going round in circles, and since when."""

    def note(self, at: int, event: Event) -> None:
        self.events.setdefault(at, Counter())[event] += 1


# -- Kueue's side ---------------------------------------------------------------------------------


def recorded(kueue: Mapping[str, Any]) -> Run:
    run = Run(livelock_at=kueue["livelock_at"])
    for one in kueue["trace"]:
        run.note(int(one["t"]), (one["op"], one["w"], _recorded_detail(one)))
    return run


def _recorded_detail(one: Mapping[str, Any]) -> str:
    if one["op"] == "A":
        sets = (f"{name}: {given}" for name, given in sorted(one["d"].items()))
        return f"{one['cq']} {', '.join(sets)}"
    return str(one.get("reason", ""))


# -- ours -----------------------------------------------------------------------------------------


def engine_of(scenario: Mapping[str, Any]) -> Scheduler:
    settings = EngineSettings(
        fair_sharing=bool(scenario["fairSharing"]), omitted_resource_is_unlimited=False
    )
    chosen = tuple(FairPreemptionStrategy(one) for one in scenario.get("strategies") or ())
    made = Scheduler(replace(settings, fair_strategies=chosen) if chosen else settings)
    made.put_namespace("default", {})
    for flavor in scenario["flavors"]:
        made.cache.put_flavor(read_flavor(flavor))
    for cohort in scenario["cohorts"]:
        made.cache.put_cohort(read_cohort(cohort))
    for queue in scenario["clusterQueues"]:
        made.cache.put_cluster_queue(read_cluster_queue(queue))
    for local in scenario["localQueues"]:
        made.put_local_queue(read_local_queue(local))
    made.settle()
    return made


class Player:
    """One scenario in virtual time."""

    def __init__(self, scenario: Mapping[str, Any]) -> None:
        self._engine = engine_of(scenario)
        self._runs_s: dict[WorkloadKey, int] = {}
        self._attempt: dict[WorkloadKey, int] = {}
        """Number of the current admission; an end of an earlier one means nothing."""
        self._arrivals: list[tuple[int, int, Workload]] = []
        self._ends: list[tuple[int, WorkloadKey, int]] = []
        self._run = Run()
        for number, one in enumerate(scenario["workloads"]):
            manifest = dict(one["object"])
            at = int(one["at"])
            workload = read_workload(_created(manifest, at, number))
            self._runs_s[workload.key] = int(one["runs"])
            heapq.heappush(self._arrivals, (at, number, workload))

    def play(self) -> Run:
        while self._arrivals or self._ends:
            at = min(queue[0][0] for queue in (self._arrivals, self._ends) if queue)
            self._finish(at)
            while self._arrivals and self._arrivals[0][0] == at:
                workload = heapq.heappop(self._arrivals)[2]
                self._engine.submit(workload, at * SECOND_NS)
            if not self._decide(at):
                self._run.livelock_at = at
                break
        return self._run

    def _finish(self, at: int) -> None:
        while self._ends and self._ends[0][0] == at:
            _, key, attempt = heapq.heappop(self._ends)
            if self._attempt.get(key) == attempt:
                self._engine.delete(key, at * SECOND_NS)
                self._run.note(at, ("F", _name(key), ""))

    def _decide(self, at: int) -> bool:
        """Cycles until nothing more can be decided at this moment; False: that never comes."""
        quiet, before = 0, None
        for _ in range(MAX_CYCLES):
            result = self._engine.cycle(at * SECOND_NS)
            self._carry_out(result, at)
            waiting = self._active()
            changed = result.reserved or result.preempted or waiting != before
            quiet, before = 0 if changed else quiet + 1, waiting
            if quiet == QUIET_CYCLES or not (changed or result.heads or result.more):
                return True
        return False

    def _active(self) -> frozenset[WorkloadKey]:
        """Pending workloads that are not set aside."""
        queues = self._engine.pending.values()
        return frozenset(info.key for queue in queues for info in queue.active())

    def _carry_out(self, result: CycleResult, at: int) -> None:
        for admitted in result.reserved:
            self._note_admission(admitted, at)
        for slice_ in result.replaced:
            self._attempt[slice_.key] += 1  # its own end means nothing any more
            self._run.note(at, ("F", _name(slice_.key), ""))
        for info in result.circling:
            self._run.circling.setdefault(_name(info.key), at)
        for gone in result.preempted:
            if self._is_mixed(gone.preemptor):
                self._run.mixed.setdefault(_name(gone.preemptor.key), at)
            self._evict(gone, at)

    def _is_mixed(self, info: WorkloadInfo) -> bool:
        """True if the workload borrows one resource and preempts for another, as MIXED_PRICE
        says."""
        spec = self._engine.cache.queues[info.cluster_queue].spec
        preference = spec.flavor_fungibility.preference
        if info.memo is None or preference is not FungibilityPreference.PREEMPTION_OVER_BORROWING:
            return False
        flavors = [
            one for pod_set in info.memo.assignment.pod_sets for one in pod_set.flavors.values()
        ]
        borrows = any(one.mode is Mode.FIT and one.borrow for one in flavors)
        return borrows and any(one.mode is Mode.PREEMPT for one in flavors)

    def _note_admission(self, one: QuotaReserved, at: int) -> None:
        key = one.info.key
        attempt = self._attempt[key] = self._attempt.get(key, 0) + 1
        heapq.heappush(self._ends, (at + self._runs_s[key], key, attempt))
        self._run.note(at, ("A", _name(key), _detail(one)))

    def _evict(self, one: Preempted, at: int) -> None:
        key = one.target.key
        self._attempt[key] += 1
        self._run.note(at, ("P", _name(key), str(one.reason)))
        self._engine.release(key, at * SECOND_NS)
        self._engine.submit(one.target.workload, at * SECOND_NS)


def _created(manifest: dict[str, Any], at: int, number: int) -> dict[str, Any]:
    """A manifest with a creation time of its own, since the recording had them distinct, in
    order."""
    metadata = {**manifest["metadata"]}
    minutes, seconds = divmod(at, 60)
    hours, minutes = divmod(minutes, 60)
    metadata["creationTimestamp"] = f"2026-01-01T{hours:02}:{minutes:02}:{seconds:02}.{number:06}Z"
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        **manifest,
        "metadata": metadata,
    }


def _name(key: WorkloadKey) -> str:
    return key.rpartition("/")[2]


def _detail(one: QuotaReserved) -> str:
    given = one.admission()
    sets = []
    for pod_set in sorted(given.pod_sets, key=lambda one: one.name):
        flavors = " ".join(f"{name}={flavor}" for name, flavor in sorted(pod_set.flavors.items()))
        sets.append(f"{pod_set.name}: {pod_set.count} {flavors}".rstrip())
    return f"{given.cluster_queue} {', '.join(sets)}"


# -- side by side ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Difference:
    """The first second that differs; what comes after it follows from it."""

    at: int
    theirs: tuple[Event, ...]
    ours: tuple[Event, ...]

    def lines(self) -> tuple[str, ...]:
        return (
            f"second {self.at}",
            *(f"only Kueue: {' '.join(event)}" for event in self.theirs),
            *(f"only ours:  {' '.join(event)}" for event in self.ours),
        )


def compare(theirs: Run, ours: Run) -> Difference | None:
    """Up to the first livelock. Who is pending at the end follows from the rest."""
    ends = [run.livelock_at for run in (theirs, ours) if run.livelock_at is not None]
    until = min(ends, default=None)
    for at in sorted(theirs.events.keys() | ours.events.keys()):
        if until is not None and at >= until:
            return None
        one, other = set(theirs.events.get(at, ())), set(ours.events.get(at, ()))
        if one != other:
            return Difference(at, tuple(sorted(one - other)), tuple(sorted(other - one)))
    return None


def explanation(found: Difference, ours: Run, queue_of: Mapping[str, str]) -> str:
    """Why Kueue is at fault; empty where it is not known to be."""
    mine = {name for _, name, _ in found.ours}
    if any(ours.mixed.get(name) == found.at for name in mine):
        return MIXED_PRICE
    queues = {queue_of[name] for _, name, _ in (*found.theirs, *found.ours)}
    circling = (name for name, since in ours.circling.items() if since <= found.at)
    if any(queue_of[name] in queues for name in circling):
        return CIRCLING
    return ""


def run_line(record: Mapping[str, Any]) -> Outcome:
    ours = Player(record["scenario"]).play()
    found = compare(recorded(record["kueue"]), ours)
    if found is None:
        return Outcome(Verdict.EQUAL)
    queue_of = {
        one["object"]["metadata"]["name"]: one["object"]["spec"]["queueName"]
        for one in record["scenario"]["workloads"]
    }
    because = explanation(found, ours, queue_of)
    return Outcome(Verdict.EXPLAINED if because else Verdict.DIFFERS, found.lines(), because)


def records(path: Path) -> Iterator[Mapping[str, Any]]:
    """Raises OSError, ValueError."""
    try:
        with open_text(path) as file:
            for line in file:
                if line.strip():
                    record = json.loads(line)
                    if not isinstance(record, Mapping):
                        raise ValueError(f"{path}: a line that is no JSON object")
                    yield record
    except (EOFError, LZMAError) as error:
        raise ValueError(f"{path}: {error}") from error


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.kit.conformance.traces")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("-v", "--verbose", action="store_true", help="name equal runs too")
    parser.add_argument("--only", metavar="NAME", help="this run alone")
    options = parser.parse_args(arguments)
    totals: Counter[Verdict] = Counter()
    for path in options.files:
        try:
            for record in records(path):
                name = str(record["name"])
                if options.only not in (None, name):
                    continue
                outcome = run_line(record)
                totals[outcome.verdict] += 1
                if options.verbose or outcome.verdict is not Verdict.EQUAL:
                    print(f"{outcome.verdict:9}  {name}")
                for detail in (outcome.because, *outcome.details):
                    if detail:
                        print(f"           {detail}")
        except (OSError, ValueError, KeyError, TypeError, ManifestError) as error:
            print(f"{path}: cannot be used: {error!r}", file=sys.stderr)
            return 2
    parts = ", ".join(f"{totals.get(verdict, 0)} {verdict}" for verdict in Verdict)
    print(f"total: {parts}, of {sum(totals.values())}")
    return 1 if totals[Verdict.DIFFERS] else 0


if __name__ == "__main__":
    sys.exit(main())

"""A plain, slow queue, written from Kueue's documentation and not from our engine: lists that are walked through, no
memory between two looks. It plays the same runs as `tests.kit.conformance.traces`.

What it knows, and so what the generators make: ClusterQueues with one resource group and several flavors, alone or in one
cohort, with borrowing and lending limits; `whenCanBorrow`; StrictFIFO and BestEffortFIFO; priorities; preemption of
lower priorities within a ClusterQueue, and reclaiming within a cohort by one of them, with one flavor each (in a cohort one resource, too).
Fair sharing and `borrowWithinCohort` are held against Kueue's own recorded runs instead.

Longer than a file should be: it is checked against the documentation from top to bottom, and no other code calls a part of it.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.kit.conformance.traces import Run

MAX_CYCLES = 300
"""In one second: more are without end."""
Amounts = dict[str, int]
Amounts2 = dict[tuple[str, str], int]


@dataclass
class Job:
    name: str
    queue: str
    at: int
    runs: int
    priority: int
    number: int
    """In order of creation."""
    asks: Amounts
    since: int = 0
    flavor: str = ""
    ends: int | None = None
    begin: int = 0
    """The flavor its next search begins with: a search goes on where it stopped when another was faster (Kueue's gate
    FlavorFungibilityPreserveScanProgress)."""
    stopped: int = 0

    @property
    def shape(self) -> object:
        """Key of jobs with the same requests and priority: all of them fit or none."""
        return self.priority, tuple(sorted(self.asks.items()))


@dataclass
class Queue:
    name: str
    strict: bool
    borrows_first: bool
    """whenCanBorrow: Borrow; else the next flavor is tried before."""
    preempts: bool
    in_cohort: bool
    quotas: dict[tuple[str, str], tuple[int, int | None, int | None]]
    """Nominal quota, borrowing limit and lending limit by flavor and resource."""
    flavors: list[str]
    waiting: list[Job] = field(default_factory=list)
    running: list[Job] = field(default_factory=list)
    hopeless: set[object] = field(default_factory=set)
    """Shapes that were looked at since something was freed."""
    first: Job | None = None
    """Job that waits for its victims to leave; in a StrictFIFO queue the order alone decides which
    is first."""
    kept: Amounts2 = field(default_factory=dict)
    """Quota reserved until the cycle ends: for a head that waits for its own quota, or for those it
    preempts."""
    reclaims: str = "Never"
    """Victims in other ClusterQueues, among those that borrow: "LowerPriority", "Any" or
    "Never"."""
    leaving: list[Job] = field(default_factory=list)
    """Preempted in this cycle; they run until it ends."""

    def used(self, flavor: str, resource: str) -> int:
        running = sum(job.asks.get(resource, 0) for job in self.running if job.flavor == flavor)
        return running + self.kept.get((flavor, resource), 0)

    def own(self, flavor: str, resource: str) -> int:
        """Amount that no other queue can ever use."""
        nominal, _, lending = self.quotas[flavor, resource]
        if not self.in_cohort:
            return nominal
        return nominal - lending if lending is not None else 0


class Reference:
    def __init__(self, scenario: Mapping[str, Any]) -> None:
        self.queues = {one["metadata"]["name"]: _queue(one) for one in scenario["clusterQueues"]}
        self.jobs = [_job(one, number) for number, one in enumerate(scenario["workloads"])]
        self.run = Run()
        self._turning: list[Job] = []
        """Heads of StrictFIFO queues that lost what they found to another in this second."""

    def play(self) -> Run:
        coming = sorted(self.jobs, key=lambda job: (job.at, job.number))
        while coming or any(queue.running for queue in self.queues.values()):
            ends = [job.ends for q in self.queues.values() for job in q.running if job.ends]
            at = min([*ends, *(job.at for job in coming[:1])])
            for queue in self.queues.values():
                for job in [job for job in queue.running if job.ends == at]:
                    queue.running.remove(job)
                    self.run.note(at, ("F", job.name, ""))
                    self._look_again(queue)
            while coming and coming[0].at == at:
                job = coming.pop(0)
                self.queues[job.queue].waiting.append(job)
            self._turning.clear()
            cycles = 0
            while self._cycle(at) and cycles < MAX_CYCLES:
                cycles += 1
            if cycles == MAX_CYCLES or any(job.ends is None for job in self._turning):
                # It tries its flavors in turns; at which of them it is when the second ends is chance.
                self.run.livelock_at = at
                break
        return self.run

    def _look_again(self, freed: Queue) -> None:
        for queue in self.queues.values():
            if queue is freed or (queue.in_cohort and freed.in_cohort):
                queue.hopeless.clear()

    # -- quota ------------------------------------------------------------------------------------

    def fits(self, queue: Queue, flavor: str, asks: Amounts) -> bool:
        return all(self._fits(queue, flavor, name, amount) for name, amount in asks.items())

    def _fits(self, queue: Queue, flavor: str, resource: str, amount: int) -> bool:
        nominal, limit, _ = queue.quotas[flavor, resource]
        after = queue.used(flavor, resource) + amount
        if not queue.in_cohort:
            return after <= nominal
        if limit is not None and after > nominal + limit:
            return False
        # Of what is for all: each gives what it lends, and takes what is above its own. While more is kept of it than there
        # is, what a queue owns counts for less, too.
        pool = 0
        for one in self.queues.values():
            if one.in_cohort and (flavor, resource) in one.quotas:
                own = one.own(flavor, resource)
                taken = max(0, one.used(flavor, resource) - own)
                pool += one.quotas[flavor, resource][0] - own - taken
        left = max(0, queue.own(flavor, resource) - queue.used(flavor, resource))
        return amount <= left + pool

    def borrows(self, queue: Queue, flavor: str, asks: Amounts) -> bool:
        return any(
            queue.used(flavor, name) + amount > queue.quotas[flavor, name][0]
            for name, amount in asks.items()
        )

    # -- one cycle --------------------------------------------------------------------------------

    def _cycle(self, at: int) -> bool:
        """The first of each ClusterQueue is looked at; whether anything may follow."""
        heads = [(queue, job) for queue in self.queues.values() if (job := self._head(queue))]
        chosen = [
            (queue, job, self._flavor(queue, job), self._awaited(queue, job))
            for queue, job in heads
        ]
        found: dict[str, list[Job]] = {}
        """Victims of each job."""
        reasons: dict[str, str] = {}
        for queue, job, flavor, _ in chosen:
            if not flavor:
                found[job.name] = self._victims(queue, job)
            for victim in found.get(job.name, ()):
                own = victim.queue == queue.name
                reasons[victim.name] = "InClusterQueue" if own else "InCohortReclamation"

        def place(one: tuple[Queue, Job, str, str]) -> tuple[bool, int, int]:
            queue, job, flavor, awaited = one
            wanted = flavor or awaited
            with self._gone(found.get(job.name, [])):
                borrows = bool(wanted) and self.borrows(queue, wanted, job.asks)
            return borrows, -job.priority, job.number

        chosen.sort(key=place)
        changed = False
        for queue, job, flavor, awaited in chosen:
            victims = found.get(job.name, [])
            if not flavor and awaited and not victims and queue.reclaims != "Any":
                self._keep(queue, job, awaited)
            if flavor and self._still_fits(queue, flavor, job):
                self._admit(queue, job, flavor, at)
                changed = True
            elif flavor:
                # Another was faster: it is looked at again.
                job.begin = (job.stopped + 1) % len(queue.flavors)
                changed = changed or job.begin > 0
                if queue.strict and job.begin:
                    self._turning.append(job)
                continue
            elif victims:
                changed = True
                if not self._preempt(queue, job, awaited or queue.flavors[0], victims):
                    continue  # another was faster
            elif not queue.strict:
                queue.hopeless.add(job.shape)
                changed = True
            job.begin = 0
        for queue in self.queues.values():
            queue.kept.clear()
        for queue in self.queues.values():
            for job in queue.leaving:
                self._stop(queue, job, at, reasons[job.name])
            queue.leaving.clear()
        return changed

    def _head(self, queue: Queue) -> Job | None:
        if queue.first is not None:
            return queue.first
        ready = [job for job in queue.waiting if job.shape not in queue.hopeless]
        return min(ready, key=lambda job: (-job.priority, job.number), default=None)

    def _flavor(self, queue: Queue, job: Job) -> str:
        """The first that fits; one without borrowing before one with it, unless the queue borrows first. Empty: none."""
        found = ""
        for number in range(job.begin, len(queue.flavors)):
            flavor = queue.flavors[number]
            job.stopped = number
            if not self.fits(queue, flavor, job.asks):
                continue
            if queue.borrows_first or not self.borrows(queue, flavor, job.asks):
                return flavor
            found = found or flavor
        return found

    def _awaited(self, queue: Queue, job: Job) -> str:
        """A flavor of which the queue's own quota is enough for it, were it free: that may come back. Empty: none."""
        if not queue.in_cohort:
            return ""
        found = [
            flavor
            for flavor in queue.flavors[job.begin :]
            if all(
                self._fits(queue, flavor, name, amount) or amount <= queue.quotas[flavor, name][0]
                for name, amount in job.asks.items()
            )
        ]
        # A flavor is as dear as the dearest that it lacks; what fits of it counts for nothing there.
        cheap = [one for one in found if not self.borrows(queue, one, self._lacks(queue, one, job))]
        return (cheap or found or [""])[0]

    def _lacks(self, queue: Queue, flavor: str, job: Job) -> Amounts:
        return {n: a for n, a in job.asks.items() if not self._fits(queue, flavor, n, a)}

    def _keep(self, queue: Queue, job: Job, flavor: str) -> None:
        """Reserve for this cycle the quota that a job waits for: as much as is its queue's own, or
        that it may borrow."""
        borrows = self.borrows(queue, flavor, job.asks)
        for name, amount in job.asks.items():
            nominal, limit, _ = queue.quotas[flavor, name]
            left = nominal - queue.used(flavor, name)
            if borrows:
                kept = amount if limit is None else min(amount, left + limit)
            else:
                kept = min(amount, left)
            queue.kept[flavor, name] = max(0, kept)

    def _admit(self, queue: Queue, job: Job, flavor: str, at: int) -> None:
        queue.waiting.remove(job)
        queue.running.append(job)
        job.flavor, job.since, job.ends = flavor, at, at + job.runs
        if queue.first is job:
            queue.first = None
        given = " ".join(f"{name}={flavor}" for name in sorted(job.asks))
        self.run.note(at, ("A", job.name, f"{queue.name} main: 1 {given}"))

    @contextlib.contextmanager
    def _gone(self, jobs: Iterable[Job]) -> Iterator[None]:
        """Treat jobs as if they had ended."""
        away = [(self.queues[job.queue], job) for job in jobs]
        for queue, job in away:
            queue.running.remove(job)
        yield
        for queue, job in away:
            queue.running.append(job)

    def _leaving(self) -> list[Job]:
        return [job for queue in self.queues.values() for job in queue.leaving]

    def _still_fits(self, queue: Queue, flavor: str, job: Job) -> bool:
        """Beside what is kept for others, once the preempted have gone; and, since it starts at once, beside those."""
        leaving = self._leaving()
        with self._gone(leaving):
            after = self.fits(queue, flavor, job.asks)
        if not after or not leaving:
            return after
        kept = {name: one.kept for name, one in self.queues.items()}
        for one in self.queues.values():
            one.kept = {}
        now = self.fits(queue, flavor, job.asks)
        for name, amounts in kept.items():
            self.queues[name].kept = amounts
        return now

    def _preempt(self, queue: Queue, job: Job, flavor: str, victims: list[Job]) -> bool:
        """False: it would no longer fit."""
        with self._gone([*self._leaving(), *victims]):
            if not self.fits(queue, flavor, job.asks):
                return False
        for victim in victims:
            self.queues[victim.queue].leaving.append(victim)
        for name, amount in job.asks.items():
            queue.kept[flavor, name] = queue.kept.get((flavor, name), 0) + amount
        if not queue.strict:
            queue.first = job
        return True

    # -- preemption within a cohort ---------------------------------------------------------------

    def _cohort_victims(self, queue: Queue, job: Job) -> list[Job]:
        """Victims for a job of one resource and one flavor. Lent quota comes back from the queues
        that borrow it, for work that then is within the queue's own quota; own lower priorities
        make room for work that borrows, too."""
        (flavor,), ((resource, amount),) = queue.flavors, job.asks.items()
        nominal = queue.quotas[flavor, resource][0]
        own = [one for one in queue.running if queue.preempts and one.priority < job.priority]
        others = [
            one
            for other in self.queues.values()
            if other is not queue and other.in_cohort and queue.reclaims != "Never"
            for one in other.running
            if queue.reclaims == "Any" or one.priority < job.priority
        ]

        def lent(one: Job) -> bool:
            other = self.queues[one.queue]
            return other.used(flavor, resource) > other.quotas[flavor, resource][0]

        def order(one: Job) -> tuple[bool, int, int, str]:
            return one.queue == queue.name, one.priority, -one.since, one.name

        def attempt(candidates: list[Job], may_borrow: bool) -> list[Job]:
            def fits() -> bool:
                within = queue.used(flavor, resource) + amount <= nominal
                return (may_borrow or within) and self.fits(queue, flavor, job.asks)

            gone: list[Job] = []
            for one in sorted(candidates, key=order):
                if one.queue != queue.name and not lent(one):
                    continue
                self.queues[one.queue].running.remove(one)
                gone.append(one)
                if fits():
                    break
            done = bool(gone) and fits()
            for one in reversed(gone[:-1]) if done else ():
                self.queues[one.queue].running.append(one)
                if fits():
                    gone.remove(one)
                else:
                    self.queues[one.queue].running.remove(one)
            for one in gone:
                self.queues[one.queue].running.append(one)
            return gone if done else []

        used = queue.used(flavor, resource)
        if used + amount <= nominal:
            return attempt([*own, *others], True)
        if used >= nominal or not any(map(lent, others)):
            return attempt(own, True)  # no other queue's work is at stake, so it may borrow at once
        return attempt([*own, *others], False) or attempt(own, True)

    # -- preemption within a ClusterQueue ---------------------------------------------------------

    def _victims(self, queue: Queue, job: Job) -> list[Job]:
        """The lowest priorities first, of those who began last; none that need not go."""
        if queue.in_cohort and (queue.preempts or queue.reclaims != "Never"):
            return self._cohort_victims(queue, job) if self._awaited(queue, job) else []
        if not queue.preempts:
            return []
        (flavor,) = queue.flavors
        nominal = {name: queue.quotas[flavor, name][0] for name in job.asks}
        below = [one for one in queue.running if one.priority < job.priority]
        below.sort(key=lambda one: (one.priority, -one.since, one.name))

        def room_without(gone: list[Job]) -> bool:
            return all(
                queue.used(flavor, name) - sum(one.asks.get(name, 0) for one in gone) + amount
                <= nominal[name]
                for name, amount in job.asks.items()
            )

        gone: list[Job] = []
        for one in below:
            if room_without(gone):
                break
            if any(one.asks.get(name) for name in job.asks if self._short(queue, job, name)):
                gone.append(one)
        if not room_without(gone):
            return []
        for one in reversed(gone[:-1]):
            rest = [other for other in gone if other is not one]
            if room_without(rest):
                gone = rest
        return gone

    def _short(self, queue: Queue, job: Job, resource: str) -> bool:
        (flavor,) = queue.flavors
        return not self._fits(queue, flavor, resource, job.asks[resource])

    def _stop(self, queue: Queue, job: Job, at: int, reason: str) -> None:
        queue.running.remove(job)
        queue.waiting.append(job)
        job.ends = None
        self._look_again(queue)
        self.run.note(at, ("P", job.name, reason))


def _queue(manifest: Mapping[str, Any]) -> Queue:
    spec = manifest["spec"]
    (group,) = spec["resourceGroups"]
    quotas = {}
    for flavor in group["flavors"]:
        for one in flavor["resources"]:
            limits = (one.get("borrowingLimit"), one.get("lendingLimit"))
            borrow, lend = (None if limit is None else int(limit) for limit in limits)
            quotas[flavor["name"], one["name"]] = (int(one["nominalQuota"]), borrow, lend)
    fungibility = spec.get("flavorFungibility") or {}
    return Queue(
        name=manifest["metadata"]["name"],
        strict=spec.get("queueingStrategy") == "StrictFIFO",
        borrows_first=fungibility.get("whenCanBorrow", "Borrow") == "Borrow",
        preempts=spec.get("preemption", {}).get("withinClusterQueue") == "LowerPriority",
        reclaims=spec.get("preemption", {}).get("reclaimWithinCohort", "Never"),
        in_cohort=bool(spec.get("cohortName")),
        quotas=quotas,
        flavors=[one["name"] for one in group["flavors"]],
    )


def _job(one: Mapping[str, Any], number: int) -> Job:
    spec = one["object"]["spec"]
    (container,) = spec["podSets"][0]["template"]["spec"]["containers"]
    asks = {name: int(amount) for name, amount in container["resources"]["requests"].items()}
    return Job(
        name=one["object"]["metadata"]["name"],
        queue=spec["queueName"],
        at=int(one["at"]),
        runs=int(one["runs"]),
        priority=spec["priority"],
        number=number,
        asks=asks,
    )


# -- new scenarios --------------------------------------------------------------------------------

RESOURCES = ("example.com/a", "example.com/b")


def scenario(seed: int) -> dict[str, Any]:
    chance = random.Random(seed)
    alone = chance.random() < 0.4
    resources = RESOURCES[: chance.choice((1, 1, 2))]
    flavors = [f"f{i}" for i in range(1 if alone else chance.choice((1, 2, 3)))]
    names = [f"q{i}" for i in range(chance.choice((1, 2) if alone else (2, 3, 4)))]
    queues = [_random_queue(chance, name, alone, resources, flavors) for name in names]
    return _scenario(flavors, names, queues, list(_random_jobs(chance, names, resources)))


def _scenario(
    flavors: list[str], names: list[str], queues: list[Any], jobs: list[Any]
) -> dict[str, Any]:
    return {
        "fairSharing": False,
        "flavors": [{"metadata": {"name": name}, "spec": {}} for name in flavors],
        "cohorts": [],
        "clusterQueues": queues,
        "localQueues": [
            {"metadata": {"name": name, "namespace": "default"}, "spec": {"clusterQueue": name}}
            for name in names
        ],
        "workloads": jobs,
    }


def reclaiming(seed: int) -> dict[str, Any]:
    """A cohort with one flavor and one resource, in which one ClusterQueue takes back what it has lent."""
    chance = random.Random(seed)
    names = [f"q{i}" for i in range(chance.choice((2, 3, 4)))]
    queues = [_random_queue(chance, name, False, RESOURCES[:1], ["f0"]) for name in names]
    chance.choice(queues)["spec"]["preemption"] = {
        "reclaimWithinCohort": chance.choice(("Any", "LowerPriority")),
        "withinClusterQueue": chance.choice(("Never", "LowerPriority")),
    }
    return _scenario(["f0"], names, queues, list(_random_jobs(chance, names, RESOURCES[:1])))


def _random_queue(
    chance: random.Random, name: str, alone: bool, resources: tuple[str, ...], flavors: list[str]
) -> dict[str, Any]:
    def quota(resource: str) -> dict[str, Any]:
        nominal = chance.randrange(0 if not alone else 2, 9)
        made: dict[str, Any] = {"name": resource, "nominalQuota": str(nominal)}
        if not alone and chance.random() < 0.3:
            made["borrowingLimit"] = str(chance.randrange(0, 6))
        if not alone and chance.random() < 0.3:
            made["lendingLimit"] = str(chance.randrange(0, nominal + 1))
        return made

    spec: dict[str, Any] = {
        "namespaceSelector": {},
        "queueingStrategy": chance.choice(("StrictFIFO", "BestEffortFIFO", "BestEffortFIFO")),
        "flavorFungibility": {"whenCanBorrow": chance.choice(("Borrow", "TryNextFlavor"))},
        "resourceGroups": [
            {
                "coveredResources": list(resources),
                "flavors": [
                    {"name": flavor, "resources": [quota(one) for one in resources]}
                    for flavor in flavors
                ],
            }
        ],
    }
    if alone and chance.random() < 0.7:
        spec["preemption"] = {"withinClusterQueue": "LowerPriority"}
    if not alone:
        spec["cohortName"] = "all"
    return {"metadata": {"name": name}, "spec": spec}


def _random_jobs(
    chance: random.Random, queues: list[str], resources: tuple[str, ...]
) -> Iterator[dict[str, Any]]:
    at = 0
    for number in range(chance.randrange(4, 40)):
        at += chance.choice((0, 0, 1, 2, 5))
        requests = {name: str(chance.randrange(1, 6)) for name in resources}
        container = {"name": "c", "resources": {"requests": requests}}
        template = {"spec": {"containers": [container], "restartPolicy": "Never"}}
        name = f"w{number:02}"
        yield {
            "at": at,
            "runs": chance.randrange(1, 30),
            "object": {
                "metadata": {"name": name, "namespace": "default", "uid": name},
                "spec": {
                    "queueName": chance.choice(queues),
                    "priority": chance.choice((0, 0, 0, 10, 20)),
                    "active": True,
                    "podSets": [{"name": "main", "count": 1, "template": template}],
                },
            },
        }

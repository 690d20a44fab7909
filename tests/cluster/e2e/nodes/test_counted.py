"""No pod of a queue runs uncounted while every replica of the controller is killed, hung or slow, under a stream of workloads of
every kind. A watch sees each pod that a kubelet starts, and looks for its admission at that moment."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any, Self

import pytest

from tests.cluster import manifests
from tests.cluster.api import ApiError, path_of
from tests.cluster.e2e.nodes.pair import QUEUE_NAME, WORKLOADS, Pair
from tests.cluster.lab import QUEUE, SYSTEM
from tests.cluster.machine.node import ClusterError
from tests.cluster.manifests import NAMESPACE
from tests.kit.node import NodeError, until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
TEAM, GPUS = "stream", 4
LABEL = {QUEUE_NAME: TEAM}
GROUP = "kueue.x-k8s.io/pod-group-name"
TOTAL = "kueue.x-k8s.io/pod-group-total-count"
NEVER = "replicas"
"""A ReplicaSet that names a queue is no kind of job in Kueue: its pods have no Workload, and their nodes hold them."""
KINDS = ("bare", "job", "group", "deployed", NEVER)
ROUND_S = 1.5
"""Seconds between two workloads: each starts a container or two, on a machine that has other work."""


class Guard:
    """Watches pods and Workloads: what the API server stored, in its order. The admission of each pod that a kubelet starts must
    be older than its first container."""

    def __init__(self, lab: Pair) -> None:
        self.lab = lab
        self.started: dict[str, Started] = {}
        """Pods that a kubelet started, by uid."""
        self.wrong: list[str] = []
        self._admitted: dict[str, str] = {}
        """Times of admission by the uids of their Workloads' owners."""
        self._held: dict[str, int] = {}
        self._over = threading.Event()
        self._threads = [
            self._thread(lambda: self._watch(path_of("pods", NAMESPACE), self._look)),
            self._thread(lambda: self._watch(WORKLOADS, self._count)),
        ]

    def __enter__(self) -> Self:
        for one in self._threads:
            one.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    @property
    def ran(self) -> Counter[str]:
        """How many pods of each kind were started."""
        return Counter(one.kind for one in list(self.started.values()))

    def uncounted(self) -> list[str]:
        """Pods that were started without an admission, or before it."""
        found = []
        for one in list(self.started.values()):
            times = [self._admitted[uid] for uid in one.uids if uid in self._admitted]
            if not times or min(times) > one.at:
                found.append(f"{one.name} started at {one.at}, admitted at {times}")
        return found

    def check(self) -> None:
        """One watch may be behind the other for a moment."""
        with suppress(NodeError):
            until("every pod that runs is admitted", lambda: not self.uncounted(), 20)
        assert self.wrong + self.uncounted() == []

    def _thread(self, work: Callable[[], None]) -> threading.Thread:
        def guarded() -> None:
            try:
                work()
            except Exception as error:
                if not self._over.is_set():
                    self.wrong.append(repr(error))

        return threading.Thread(target=guarded, daemon=True)

    def _watch(self, path: str, take: Callable[[str, dict[str, Any]], None]) -> None:
        while not self._over.is_set():
            if path == WORKLOADS:
                self._held.clear()
            # It ends when nothing happened for some time; the next begins with all that there is.
            with suppress(OSError, HTTPException):
                for event in self.lab.api.watch(path):
                    if self._over.is_set() or event["type"] == "ERROR":
                        break
                    take(event["type"], event["object"])

    def _look(self, kind: str, pod: dict[str, Any]) -> None:
        head = pod["metadata"]
        for one in (pod.get("status") or {}).get("containerStatuses") or ():
            for state in (one["state"], one.get("lastState") or {}):
                for told in (state.get("running"), state.get("terminated")):
                    at = (told or {}).get("startedAt")
                    if at and head["uid"] not in self.started and head["name"].partition("-")[0] in KINDS:  # fmt: skip
                        uids = {head["uid"], *(owner["uid"] for owner in head.get("ownerReferences") or ())}  # fmt: skip
                        self.started[head["uid"]] = Started(head["name"], at, uids)

    def _count(self, kind: str, workload: dict[str, Any]) -> None:
        name = workload["metadata"]["name"]
        held = 0 if kind == "DELETED" else gpus(workload)
        if held != self._held.get(name, 0):
            self._held[name] = held
            now = {key: value for key, value in self._held.items() if value}
            if sum(now.values()) > GPUS:
                self.wrong.append(
                    f"more than {GPUS} GPUs are admitted: {now}, the last by {workload}"
                )
        for one in (workload.get("status") or {}).get("conditions") or ():
            if (one["type"], one["status"]) == ("Admitted", "True"):
                for owner in workload["metadata"].get("ownerReferences") or ():
                    self._admitted.setdefault(owner["uid"], one["lastTransitionTime"])


@dataclass(frozen=True)
class Started:
    name: str
    at: str
    uids: Collection[str]
    """Its own, and those of its owners."""

    @property
    def kind(self) -> str:
        return self.name.partition("-")[0]


class Stream(Guard):
    """Creates a workload of each kind in turn besides. Those that end by themselves free their quota for others; the rest is
    deleted two rounds later."""

    def __init__(self, lab: Pair) -> None:
        super().__init__(lab)
        self.created: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self._threads.append(self._thread(self._create))

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._threads[-1].join(60)

    def _create(self) -> None:
        number = first = 100 * int(time.monotonic())  # no two runs have the same names
        while not self._over.wait(ROUND_S):
            kind = KINDS[(number - first) % len(KINDS)]
            for document in documents(self.lab, kind, f"{kind}-{number}"):
                plural = f"{document['kind'].lower()}s"
                try:
                    self.lab.api.create(plural, NAMESPACE, document)
                    self.created[kind] += 1
                except OSError as error:
                    if isinstance(error, ApiError) and "webhook" not in str(error):
                        raise
                    self.refused[kind] += 1  # or there was no answer at all
            old = number - 2 * len(KINDS)
            for plural in ("deployments", "replicasets"):
                self.lab.api.delete(path_of(plural, NAMESPACE, f"{kind}-{old}"))
            number += 1


def documents(lab: Pair, kind: str, name: str, whole: bool = False) -> list[dict[str, Any]]:
    """One workload of that kind; `whole`: it asks for a GPU and for no amounts."""
    labels = LABEL if kind in ("bare", "group") else {}
    command = "sleep 3600" if kind in ("deployed", NEVER) else "sleep 2"
    amounts: dict[str, Any] = dict.fromkeys(("memory_mib", "cores")) if whole else {"memory_mib": 1000, "cores": 5}  # fmt: skip
    pod = lab.gpu_pod(name, command=command, labels=labels, **amounts)
    if kind == "bare":
        return [pod]
    if kind == "job":
        return [manifests.owned("Job", name, pod, labels=LABEL)]
    if kind == "deployed":
        return [manifests.owned("Deployment", name, pod, labels=LABEL)]
    if kind == NEVER:
        return [{**manifests.owned("Deployment", name, pod, labels=LABEL), "kind": "ReplicaSet"}]
    head = {**pod["metadata"], "labels": {**LABEL, GROUP: name}, "annotations": {TOTAL: "2"}}
    return [{**pod, "metadata": {**head, "name": f"{name}-{one}"}} for one in range(2)]


def gpus(workload: dict[str, Any]) -> int:
    """GPUs that a Workload's stored status holds: the quota of pods that have ended is free, though the assignment has them."""
    status = workload.get("status") or {}
    if any(one["type"] == "Finished" and one["status"] == "True" for one in status.get("conditions") or ()):  # fmt: skip
        return 0
    ended = {one["name"]: one["count"] for one in status.get("reclaimablePods") or ()}
    held = 0
    for one in (status.get("admission") or {}).get("podSetAssignments") or ():
        each = int(one["resourceUsage"]["nvidia.com/gpu"]) // one["count"]
        held += each * max(0, one["count"] - ended.get(one["name"], 0))
    return held


def killed(lab: Pair) -> None:
    """Again and again, as soon as a container of it runs."""
    end_s = time.monotonic() + 20
    while time.monotonic() < end_s:
        for machine, task in lab.queue_tasks():
            machine.run("ctr", "tasks", "kill", "-s", "SIGKILL", task, check=False)
        time.sleep(0.5)  # how often is part of what is tried


def hung(lab: Pair) -> None:
    signal_all(lab, "STOP")
    time.sleep(30)  # three times as long as the API server waits for an answer
    signal_all(lab, "CONT")


def slow(lab: Pair) -> None:
    """It works for 0.3 s of each three seconds."""
    end_s = time.monotonic() + 60
    while time.monotonic() < end_s:
        signal_all(lab, "STOP")
        time.sleep(2.7)
        signal_all(lab, "CONT")
        time.sleep(0.3)


def signal_all(lab: Pair, which: str) -> None:
    for machine, task in lab.queue_tasks():
        script = f"kill -{which} $(ctr tasks ps {task} | awk 'NR > 1 {{print $1}}')"
        with suppress(ClusterError):  # the kubelet restarts what does not answer it
            machine.run("sh", "-c", script)


@pytest.mark.parametrize("outage", [killed, hung, slow], ids=lambda one: one.__name__)
def test_no_pod_runs_uncounted(pair: Pair, outage: Callable[[Pair], None]) -> None:
    pair.queue(TEAM, GPUS)
    with Stream(pair) as stream:

        def each_ran(before: Counter[str]) -> bool:
            more = stream.ran - before
            return bool(stream.wrong) or all(more[one] for one in KINDS if one != NEVER)

        until("some of each kind have run", lambda: each_ran(Counter()), 180)
        outage(pair)
        signal_all(pair, "CONT")
        stream.check()
        # Its containers are not started again at once after so many ends: another pod is.
        for one in pair.api.items("pods", SYSTEM, labelSelector="app.kubernetes.io/component=queue"):  # fmt: skip
            pair.api.delete(path_of("pods", SYSTEM, one["metadata"]["name"]), 0)
        until("its replicas are back", lambda: pair.ready("deployments", QUEUE), 180)
        before = stream.ran
        until("some of each kind run again", lambda: each_ran(before), 180)
        stream.check()
    print(f"{outage.__name__}: created {dict(stream.created)}, refused {dict(stream.refused)}, ran {dict(stream.ran)}")  # fmt: skip
    assert stream.ran[NEVER] == 0, "its queue cannot count it"
    if outage is not slow:
        assert stream.refused, "there was a time without an answer"


def scale(lab: Pair, replicas: int) -> None:
    lab.api.patch(path_of("deployments", SYSTEM, QUEUE), {"spec": {"replicas": replicas}})
    until("it is done", lambda: len(lab.queue_tasks()) == replicas, 120)
    until("they are ready", lambda: lab.ready("deployments", QUEUE), 180)


@pytest.fixture
def ignoring(pair: Pair) -> Iterator[Pair]:
    """With the policy Ignore objects that name a queue are created while no replica answers. A report has the pods of before its end."""
    pair.install({"queue.webhooks.queuedFailurePolicy": "Ignore"})
    yield pair
    pair.clear()
    pair.install()


def test_what_the_api_server_let_through_waits_on_its_node(ignoring: Pair) -> None:
    """The stock scheduler places those that ask for a GPU and no amounts."""
    pair = ignoring
    pair.queue(TEAM, GPUS)
    with Guard(pair) as guard:
        scale(pair, 0)
        for kind in KINDS:
            for document in documents(pair, kind, f"{kind}-0", whole=True):
                pair.api.create(f"{document['kind'].lower()}s", NAMESPACE, document)

        def held() -> bool:
            pods = pair.pods()
            waits = [any("waits in queue" in e for e in pair.events(one["metadata"]["name"])) for one in pods]  # fmt: skip
            return bool(guard.wrong) or (len(pods) == len(KINDS) + 1 and all(waits))

        until("each of them says that it waits", held, 120)
        assert (guard.wrong, dict(guard.ran)) == ([], {})
        scale(pair, 2)
        until("what its controllers make again runs", lambda: guard.ran["job"] and guard.ran["deployed"], 180)  # fmt: skip
        alone = {"bare-0", "group-0-0", "group-0-1"}
        until("those without one are deleted", lambda: not alone & {one["metadata"]["name"] for one in pair.pods()}, 60)  # fmt: skip
        guard.check()
    assert guard.ran.keys() == {"job", "deployed"}

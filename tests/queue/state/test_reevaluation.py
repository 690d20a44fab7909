"""A changed object has the workloads that it concerns evaluated again, and no others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from queuecontroller.state.book import Book, BookSettings
from queuecontroller.state.objects.submission import Submission
from queuecontroller.state.records import GpuAsk
from tests.queue.state.world import GIB, SECOND

PENDING = 10_000
TEAMS = 100
NAMES = [f"t{number}" for number in range(TEAMS)]


def team(name: str, cohort: str, gpus: int = 0, **spec: object) -> dict[str, Any]:
    quota = {"name": "nvidia.com/gpu", "nominalQuota": gpus}
    group = {
        "coveredResources": ["nvidia.com/gpu"],
        "flavors": [{"name": "h100" if name < "t5" else "a100", "resources": [quota]}],
    }
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta1",
        "kind": "ClusterQueue",
        "metadata": {"name": name},
        "spec": {
            "cohort": cohort,
            "namespaceSelector": {"matchLabels": {"open": "yes"}},
            "resourceGroups": [group],
            **spec,
        },
    }


def pausing(name: str) -> dict[str, Any]:
    found = team(name, f"c{NAMES.index(name) // 10}")
    found["metadata"]["annotations"] = {"sluice.dev/on-preemption": "pause"}
    return found


def namespace(name: str, open_: str = "yes") -> dict[str, Any]:
    head = {"name": name, "labels": {"open": open_}}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": head}


def door(name: str, **spec: object) -> dict[str, Any]:
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta1",
        "kind": "LocalQueue",
        "metadata": {"name": "q", "namespace": name},
        "spec": {"clusterQueue": name, **spec},
    }


def flavor(name: str, **labels: str) -> dict[str, Any]:
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta1",
        "kind": "ResourceFlavor",
        "metadata": {"name": name},
        "spec": {"nodeLabels": labels},
    }


@dataclass
class Counted:
    """10,000 wait in 100 ClusterQueues, ten in each cohort."""

    book: Book
    submissions: int = 0
    looked_at: int = 0
    now_ns: int = 1000 * SECOND

    def settle_down(self) -> None:
        while True:
            result = self.book.workloads.cycle(self.now_ns)
            self.looked_at += result.heads
            if not (result.reserved or result.preempted or result.more):
                return

    def after(self, change: Callable[[Book], object]) -> tuple[int, int]:
        """Workloads that were taken in again, and heads that were looked at again."""
        self.submissions = self.looked_at = 0
        change(self.book)
        self.settle_down()
        return self.submissions, self.looked_at


@pytest.fixture(scope="module")
def counted() -> Counted:
    numbers = iter(range(10**6))
    made = Counted(Book(BookSettings(), None, lambda: f"uid-{next(numbers)}"))
    every = [flavor("h100"), flavor("a100")]
    for number, name in enumerate(NAMES):
        every += [namespace(name), team(name, f"c{number // 10}"), door(name)]
    made.book.apply(every, False, made.now_ns)
    engine = made.book.engine
    submit = engine.submit

    def counting(*arguments: Any) -> None:
        made.submissions += 1
        submit(*arguments)

    engine.submit = counting  # type: ignore[method-assign]
    ask = GpuAsk(1, memory_bytes=8 * GIB, share_ppm=500_000)
    for number in range(PENDING):
        asked = Submission(NAMES[number % TEAMS], "q", ask, max_execution_s=60 + number)
        made.book.submit(asked, made.now_ns + number)
    assert made.submissions == PENDING
    made.settle_down()
    assert sum(len(line) for line in engine.pending.values()) == PENDING
    return made


def waiting(made: Counted) -> int:
    return sum(len(line) for line in made.book.engine.pending.values())


@pytest.mark.parametrize(
    ("change", "submissions", "heads"),
    [
        pytest.param(lambda book: book.apply([team("t7", "c0", 0, stopPolicy="None")], False, 1), 0, 0, id="nothing that counts"),
        pytest.param(lambda book: book.apply([team("t7", "c0", 0, queueingStrategy="StrictFIFO")], False, 1), 0, 10, id="a ClusterQueue: its cohort"),
        pytest.param(lambda book: book.apply([team("t7", "alone")], False, 1), 0, 10, id="from one cohort to another: both"),
        pytest.param(lambda book: book.apply([team("t7", "c0")], False, 1), 0, 10, id="and back"),
        pytest.param(lambda book: book.apply([flavor("h100", pool="x")], False, 1), 0, 50, id="a flavor: the cohorts where it is used"),
        pytest.param(lambda book: book.apply([namespace("t8", "no")], False, 1), 0, 100, id="a closed namespace: those in it"),
        pytest.param(lambda book: book.apply([namespace("t8")], False, 1), 0, 1, id="an open one: one of them"),
        pytest.param(lambda book: book.hold(("LocalQueue", "t9", "q"), False, 1), 100, 0, id="a closed LocalQueue: its own"),
        pytest.param(lambda book: book.resume(("LocalQueue", "t9", "q"), 1), 100, 1, id="an open one: its own"),
        pytest.param(lambda book: book.apply([door("t10", fairSharing={"weight": 2})], False, 1), 0, 0, id="the weight of a LocalQueue"),
        pytest.param(lambda book: book.hold(("ClusterQueue", "", "t90"), False, 1), 0, 9, id="a held ClusterQueue: the others of its cohort"),
        pytest.param(lambda book: book.resume(("ClusterQueue", "", "t90"), 1), 0, 10, id="a resumed one: its cohort"),
        pytest.param(lambda book: book.apply([pausing("t7")], False, 1), 0, 10, id="pause instead of stop: its cohort"),
        pytest.param(lambda book: book.apply([team("t7", "c0")], False, 1), 0, 10, id="stop again: its cohort"),
        pytest.param(lambda book: book.apply([{"kind": "WorkloadPriorityClass", "metadata": {"name": "p"}, "value": 1}], False, 1), 0, 0, id="a priority class"),
    ],
)  # fmt: skip
def test_only_those_it_touches_are_looked_at_again(
    counted: Counted, change: Callable[[Book], object], submissions: int, heads: int
) -> None:
    """All in a queue wait for the same, so its head stands for them: one a ClusterQueue."""
    taken_in, looked_at = counted.after(change)
    assert taken_in == submissions
    assert looked_at == heads
    assert counted.book.contradictions() == []


def test_what_it_touches_is_looked_at(counted: Counted) -> None:
    """Three more GPUs in one cohort start three, wherever they wait."""
    before = waiting(counted)
    wider = team("t42", "c4", 3)
    taken_in, _ = counted.after(lambda book: book.apply([wider], False, 1))
    assert taken_in == 0
    assert before - waiting(counted) == 3
    started = [info.cluster_queue for info in counted.book.engine._holding.values()]
    assert {name[1] for name in started} == {"4"}

"""Preempted pods are checkpointed: what their Workload loses and keeps, when it comes back, and what happens when anything fails."""

from __future__ import annotations

import random
from typing import Any

import pytest

from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.scheduler.model.reasons import (
    CHECKPOINT_FAILED,
    CHECKPOINT_REQUESTED,
    CHECKPOINTED,
    RESTORED,
    RESTORING,
)
from queuecontroller.scheduler.placement.capacity import CheckpointState
from queuecontroller.state.nodes.pod_checkpoints import ANSWERED_S, AWAY_S, GiveUp, NoteSaved, Tell
from tests.queue.cluster.podplacement.checkpointing import CHECKPOINTED as ASKS
from tests.queue.cluster.podplacement.checkpointing import HALF, CheckpointLab
from tests.queue.cluster.podplacement.moving import AT, WHOLE

SAVED, REFUSED, MOVING = CheckpointState.SAVED, CheckpointState.REFUSED, CheckpointState.MOVING
RESTORED_THERE = CheckpointState.RESTORED


def lab_of(**more: Any) -> tuple[CheckpointLab, WorkloadKey]:
    """One GPU, on which a job of low priority runs that asks to be checkpointed."""
    lab = CheckpointLab(("a",), **more)
    job = lab.start("low", "a", HALF, annotations=ASKS)
    lab.report()
    return lab, job


def preempted(lab: CheckpointLab, name: str = "high", **more: Any) -> WorkloadKey:
    key = lab.submit(name, HALF, priority=10, **more)
    lab.write()
    return key


def saved(lab: CheckpointLab, job: WorkloadKey) -> WorkloadKey:
    """The job is preempted, and its node has checkpointed it."""
    high = preempted(lab)
    assert lab.look() == [Tell(lab.told(job))]
    lab.answer(job, SAVED)
    assert lab.look() == [NoteSaved()]
    return high


def end(lab: CheckpointLab, key: WorkloadKey) -> None:
    """The job of a Workload without pods here has finished."""
    lab.book.workloads.finish(key, "Succeeded", "", lab.now_ns)
    lab.settle(lab.now_ns)
    lab.write()


def test_it_keeps_its_quota_and_its_gpu_until_its_node_has_saved_it() -> None:
    lab, job = lab_of()
    high = preempted(lab)
    assert lab.phase(job) == CHECKPOINT_REQUESTED
    assert lab.of(job).is_true("Evicted")
    assert lab.document(job)["status"]["admission"]
    assert "; its pods are checkpointed" in lab.of(job).condition("Evicted").message  # type: ignore[union-attr]
    lab.look()
    assert lab.told(job).startswith("save 2026-11-22T10:01:00Z")
    lab.answer(job, MOVING)
    assert lab.look() == []
    assert lab.free_mib() == 81_920 - 2 * 50_000, "its own, and what is reserved for the other"
    assert lab.where(high) == ""


def test_saved_it_loses_its_gpu_and_keeps_the_rest_of_its_quota() -> None:
    lab, job = lab_of()
    high = saved(lab, job)
    assert lab.where(high) == "a"
    assert lab.phase(job) == CHECKPOINTED
    status = lab.document(job)["status"]
    assert "admission" not in status
    [kept] = status["checkpointed"]["podSetAssignments"]
    assert kept["resourceUsage"] == {"cpu": "1"}
    assert kept["flavors"] == {"cpu": "f"}
    [reserved] = [one for one in status["conditions"] if one["type"] == "QuotaReserved"]
    assert reserved["status"] == "False"
    assert lab.used() == {
        "cpu": "2",
        "nvidia.com/gpu": "1",
        "nvidia.com/gpumem": "50k",
        "nvidia.com/gpucores": "50",
    }
    assert lab.free_mib() == 81_920 - 50_000
    assert ("Workload", CHECKPOINTED) in lab.events


def test_it_waits_for_its_own_gpu_with_a_reason_and_returns_there() -> None:
    lab = CheckpointLab(("a", "b"))
    job = lab.start("low", "a", HALF, annotations=ASKS)
    other = lab.start("other", "b", HALF, priority=10)
    lab.report()
    high = saved(lab, job)
    lab.settle(lab.now_ns)
    why = lab.book.workloads.why_not(job)
    assert why is not None
    assert (
        "it is checkpointed on node a: it needs 50000 MiB of its GPU GPU-a-0, 31920 MiB are free"
        in why.message
    )
    lab.stopped(other)
    end(lab, other)
    assert lab.where(job) == "", "another node has room, and its memory is not there"
    end(lab, high)
    assert lab.where(job) == "a"
    assert lab.phase(job) == RESTORING
    assert "checkpointed" not in lab.document(job)["status"]
    assert lab.used() == {
        "cpu": "1",
        "nvidia.com/gpu": "1",
        "nvidia.com/gpumem": "50k",
        "nvidia.com/gpucores": "50",
    }
    [tell] = lab.look()
    assert isinstance(tell, Tell)
    assert lab.told(job).startswith("restore ")
    lab.answer(job, MOVING)
    assert lab.look() == []
    lab.answer(job, RESTORED_THERE)
    lab.look()
    assert lab.phase(job) == RESTORED
    lab.look()
    assert lab.told(job) == ""
    assert lab.free_mib() == 81_920 - 50_000


def test_with_a_topology_it_returns_to_its_own_node() -> None:
    lab = CheckpointLab(("a", "b"), racks={"a": "r", "b": "r"})
    job = lab.start("low", "a", HALF, annotations=ASKS)
    other = lab.start("other", "b", HALF, priority=10)
    lab.report()
    high = saved(lab, job)
    assert "topologyAssignment" in str(lab.document(job)["status"]["checkpointed"])
    lab.stopped(other)
    end(lab, other)
    assert lab.where(job) == ""
    end(lab, high)
    assert lab.where(job) == "a"
    assert lab.phase(job) == RESTORING


def test_it_preempts_others_for_its_way_back() -> None:
    lab, job = lab_of()
    high = saved(lab, job)
    lab.book.workloads.finish(high, "Succeeded", "", lab.now_ns)
    lowest = lab.start("lowest", "a", HALF, priority=-5)
    lab.report()
    lab.settle(lab.now_ns)
    assert lab.of(lowest).is_true("Evicted")
    assert lab.where(job) == ""
    lab.stopped(lowest)
    assert lab.where(job) == "a"
    assert lab.phase(job) == RESTORING


def test_its_cpu_on_the_node_is_counted_once() -> None:
    lab, job = lab_of(cpus=2_000)
    high = saved(lab, job)
    assert lab.where(high) == "a", "2 CPUs: its own and the other's"
    third = lab.submit("third", {"gpumem": 1_000, "gpucores": 1})
    assert lab.where(third) == ""
    end(lab, high)
    assert lab.where(job) == "a"
    assert lab.where(third) == "a"


def test_a_job_that_needs_its_cpu_ends_it() -> None:
    lab, job = lab_of(quotas={"cpu": "2"})
    high = saved(lab, job)
    assert lab.where(high) == "a"
    second = lab.submit("second", {"gpumem": 1_000, "gpucores": 1}, priority=5)
    lab.write()
    assert lab.phase(job) == CHECKPOINT_FAILED
    assert lab.of(job).is_given_up
    assert lab.used()["cpu"] == "2", "until its pod has stopped"
    assert lab.where(second) == ""
    lab.stopped(job)
    lab.write()
    assert lab.where(second) == "a"
    assert lab.used()["cpu"] == "2"
    assert lab.of(job).checkpointed is None
    assert "checkpointed" not in lab.document(job)["status"]


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ({"count": 2}, "only a job of one pod can be"),
        ({"kind": "Pod"}, "only a job that is suspended and resumed can be"),
        (
            {"spec": {"resourceClaims": [{"name": "c"}]}},
            "its pod requests resourceClaims beside GPU shares",
        ),
    ],
)
def test_others_are_stopped_and_told_why(what: dict[str, Any], why: str) -> None:
    lab = CheckpointLab(("a",))
    job = lab.start("low", "a", HALF, own=ASKS, **what)
    lab.report()
    preempted(lab)
    evicted = lab.of(job).condition("Evicted")
    assert evicted is not None
    assert evicted.status
    assert f"its pods are stopped, not checkpointed: {why}" in evicted.message
    assert lab.phase(job) == ""


@pytest.mark.parametrize(
    ("where", "queue"),
    [("annotations", None), ("own", None), ("template", None), ("", ASKS)],
    ids=["the job", "the Workload", "the pod's template", "the ClusterQueue"],
)
def test_it_is_asked_for_by(where: str, queue: dict[str, str] | None) -> None:
    lab = CheckpointLab(("a",), queue)
    job = lab.start("low", "a", HALF, **({where: ASKS} if where else {}))
    lab.report()
    preempted(lab)
    assert lab.phase(job) == CHECKPOINT_REQUESTED


def test_who_asks_for_nothing_is_stopped() -> None:
    lab = CheckpointLab(("a",), ASKS)
    job = lab.start("low", "a", HALF, annotations={"sluice.dev/on-preemption": "stop"})
    lab.report()
    preempted(lab)
    assert lab.phase(job) == ""
    assert lab.of(job).is_true("Evicted")


def test_a_pod_that_does_not_run_yet_is_stopped() -> None:
    lab = CheckpointLab(("a",))
    job = lab.start("low", "a", HALF, annotations=ASKS)
    preempted(lab)
    evicted = lab.of(job).condition("Evicted")
    assert evicted is not None
    assert "its node has not reported yet that it runs" in evicted.message


def given_up(lab: CheckpointLab, job: WorkloadKey) -> str:
    """It is stopped: returns why. Its quota is free once its pod is gone, and not before."""
    [step] = [one for one in lab.look() if isinstance(one, GiveUp)]
    assert lab.phase(job) == CHECKPOINT_FAILED
    assert ("Workload", CHECKPOINT_FAILED) in lab.events
    before = lab.used()
    assert lab.look() == []
    assert lab.used() == before
    if job in lab.pods:
        lab.stopped(job)
    lab.write()
    assert lab.of(job).checkpointed is None
    assert lab.of(job).admission is None or lab.where(job)
    return step.why


@pytest.mark.parametrize("is_saved", [False, True], ids=["saving", "saved"])
class TestFailures:
    def lab(self, is_saved: bool) -> tuple[CheckpointLab, WorkloadKey, WorkloadKey]:
        lab, job = lab_of()
        if is_saved:
            return lab, job, saved(lab, job)
        high = preempted(lab)
        lab.look()
        return lab, job, high

    def test_the_node_refuses(self, is_saved: bool) -> None:
        lab, job, high = self.lab(is_saved)
        lab.answer(job, REFUSED, "the driver makes no checkpoints")
        assert given_up(lab, job) == "the driver makes no checkpoints"
        assert lab.where(high) == "a"

    def test_the_pod_ends(self, is_saved: bool) -> None:
        lab, job, high = self.lab(is_saved)
        document = lab.pods[job]
        document["metadata"]["deletionTimestamp"] = AT
        lab.book.nodes_room.pods.take(document)
        assert given_up(lab, job) == "its pod has ended"
        assert lab.where(high) == "a"

    def test_the_pod_is_gone(self, is_saved: bool) -> None:
        lab, job, _ = self.lab(is_saved)
        lab.book.nodes_room.pods.drop(lab.pods[job]["metadata"]["uid"])
        assert given_up(lab, job) == "its pod has ended"

    def test_the_node_is_away(self, is_saved: bool) -> None:
        lab, job, _ = self.lab(is_saved)
        lab.now_ns += 20 * 10**9
        assert lab.look() == []
        lab.now_ns += int((AWAY_S - 1) * 10**9)
        assert lab.look() == []
        lab.now_ns += 2 * 10**9
        assert given_up(lab, job) == "node a has not reported for 300 s"

    def test_it_is_deactivated(self, is_saved: bool) -> None:
        lab, job, _ = self.lab(is_saved)
        document = lab.document(job)
        lab.store({**document, "spec": {**document["spec"], "active": False}})
        assert given_up(lab, job) == "the Workload was deactivated"
        assert lab.of(job).admission is None

    def test_a_new_leader_goes_on(self, is_saved: bool) -> None:
        lab, job, high = self.lab(is_saved)
        lab.write()
        new = lab.new_leader()
        assert isinstance(new, CheckpointLab)
        new.answers = dict(lab.answers)
        assert new.phase(job) == lab.phase(job)
        assert new.used() == lab.used()
        new.report()
        assert new.free_mib() == 81_920 - 50_000
        if not is_saved:
            assert new.look() == []
            assert new.free_mib() == lab.free_mib()
            new.answer(job, SAVED)
            assert new.look() == [NoteSaved()]
        assert new.where(high) == "a"
        end(new, high)
        assert new.where(job) == "a"
        assert new.phase(job) == RESTORING


def test_a_node_that_never_answers_is_not_waited_for() -> None:
    lab, job = lab_of()
    high = preempted(lab)
    lab.look()
    lab.later(ANSWERED_S)
    assert lab.look() == []
    lab.later(1)
    assert given_up(lab, job) == "its node did not do it within 600 s"
    assert lab.where(high) == "a"


def test_an_answer_to_an_earlier_request_counts_for_nothing() -> None:
    lab, job = lab_of()
    preempted(lab)
    lab.answer(job, SAVED)
    lab.look()
    assert lab.phase(job) == CHECKPOINT_REQUESTED
    assert lab.look() == []
    assert lab.free_mib() < 0


def test_a_restore_that_fails_evicts_it() -> None:
    lab, job = lab_of()
    high = saved(lab, job)
    end(lab, high)
    lab.look()
    lab.answer(job, REFUSED, "the driver lost it")
    lab.look()
    assert lab.phase(job) == CHECKPOINT_FAILED
    evicted = lab.of(job).condition("Evicted")
    assert evicted is not None
    assert evicted.status
    assert evicted.message == "Its pods are stopped, not checkpointed: the driver lost it"
    assert lab.free_mib() == 81_920 - 50_000, "its pod may still hold it"
    lab.stopped(job)
    lab.write()
    assert lab.where(job) == "a"
    assert lab.phase(job) == CHECKPOINT_FAILED
    assert lab.used()["cpu"] == "1"


def test_it_is_preempted_while_it_is_restored() -> None:
    lab, job = lab_of()
    high = saved(lab, job)
    end(lab, high)
    assert lab.phase(job) == RESTORING
    second = preempted(lab, "second")
    assert lab.phase(job) == CHECKPOINT_REQUESTED
    lab.look()
    lab.answer(job, SAVED)
    lab.look()
    assert lab.phase(job) == CHECKPOINTED
    assert lab.where(second) == "a"


def test_a_deleted_workload_keeps_nothing() -> None:
    lab, job = lab_of()
    saved(lab, job)
    lab.mirror.workload(job, None, lab.now_ns)
    lab.stopped(job)
    assert lab.used()["cpu"] == "1"
    assert lab.free_mib() == 81_920 - 50_000


def test_a_job_for_the_whole_gpu_is_not_in_the_way_of_its_slot() -> None:
    lab, job = lab_of()
    high = lab.submit("high", {**WHOLE}, priority=10)
    lab.look()
    lab.answer(job, SAVED)
    lab.look()
    assert lab.where(high) == "a"


class Chance:
    """A card, jobs that come and go, a node that answers or not, and leaders that are killed."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.lab, self.job = lab_of()
        self.highs: list[WorkloadKey] = []
        self.number = 0
        self.is_saved = False
        """True while the memory of the job's pod is on the host, whatever anybody says."""
        self.seen: set[str] = set()

    def step(self) -> None:
        lab = self.lab
        match self.dice.choice(
            ("submit", *["look"] * 4, *["answer"] * 3, "end", "end", "kill", "late")
        ):
            case "submit" if len(self.highs) < 3:
                self.number += 1
                self.highs.append(lab.submit(f"high-{self.number}", HALF, priority=10))
            case "look":
                lab.look()
            case "answer":
                self.answer()
            case "end":
                for one in [one for one in self.highs if lab.where(one)][:1]:
                    self.highs.remove(one)
                    end(lab, one)
            case "kill":
                lab.write()
                self.lab = lab.new_leader()  # type: ignore[assignment]  # it is of the same class
                self.lab.answers, self.lab.now_ns = dict(lab.answers), lab.now_ns
                self.lab.report()
            case "late":
                lab.later(self.dice.choice((1, 1, 1, 1, 30, 700)))
        self.check()

    def answer(self) -> None:
        told, lab = self.lab.told(self.job), self.lab
        if told.startswith("save"):
            state = self.dice.choice((MOVING, MOVING, *[SAVED] * 9, REFUSED))
            if self.is_saved and state is not REFUSED:
                state = SAVED
            self.is_saved = self.is_saved or state is SAVED
            lab.answer(self.job, state)
        elif told.startswith("restore"):
            state = self.dice.choice((MOVING, RESTORED_THERE))
            self.is_saved = self.is_saved and state is MOVING
            lab.answer(self.job, state)

    def check(self) -> None:
        lab = self.lab
        lab.write()
        self.seen.add(lab.phase(self.job))
        there = [one for one in self.highs if lab.where(one)]
        on_card = len(there) + (not self.is_saved)
        assert on_card <= 1 or lab.phase(self.job) == CHECKPOINT_FAILED, "half a card each"
        low = lab.of(self.job)
        given = low.admission.pod_sets[0].usage if low.admission is not None else {}
        keeps = low.admission is not None or low.checkpointed is not None
        assert lab.used().get("cpu", "0") == str(len(there) + keeps)
        cores = 50 * len(there) + given.get("nvidia.com/gpucores", 0)
        assert lab.used().get("nvidia.com/gpucores", "0") == str(cores)


def test_whatever_happens_in_whatever_order_no_card_is_promised_twice_and_no_quota_is_lost() -> (
    None
):
    seen: set[str] = set()
    for seed in range(20):
        chance = Chance(seed)
        for _ in range(40):
            chance.step()
            if chance.lab.phase(chance.job) == CHECKPOINT_FAILED:
                break  # It is stopped as any other.
        seen |= chance.seen
        lab, job = chance.lab, chance.job
        if lab.phase(job) == CHECKPOINT_FAILED:
            lab.stopped(job)
            lab.write()
            assert lab.of(job).checkpointed is None
        for one in chance.highs:
            end(lab, one)
        assert lab.used().get("cpu", "0") == ("1" if lab.where(job) else "0")
        assert lab.where(job) == "a"
    assert seen >= {CHECKPOINT_REQUESTED, CHECKPOINTED, RESTORING, RESTORED, CHECKPOINT_FAILED}

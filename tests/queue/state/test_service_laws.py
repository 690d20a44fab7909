"""Whatever users and nodes do, in whatever order: quota is kept, nothing is given twice, a restart loses nothing.

The nodes here are a model of real ones: they remember the newest decision per workload, and their messages may be
delayed, repeated, lost or overtaken.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.state.node_service import WorkReport
from queuecontroller.state.nodes.sessions import StaleEpoch
from queuecontroller.state.records import Desired, OnPreemption, PodState
from tests.queue.state.world import GIB, SECOND, World, gpu

BY_USAGE = """
kind: Configuration
apiVersion: config.kueue.x-k8s.io/v1beta2
admissionFairSharing: {usageHalfLifeTime: 10m, usageSamplingInterval: 5s}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: a}
spec:
  cohortName: both
  namespaceSelector: {}
  admissionScope: {admissionMode: UsageBasedAdmissionFairSharing}
  preemption: {reclaimWithinCohort: Any, withinClusterQueue: LowerPriority}
  resourceGroups:
  - coveredResources: [nvidia.com/gpu]
    flavors:
    - name: gpus
      resources: [{name: nvidia.com/gpu, nominalQuota: 2}]
"""


class ManyHands(RuleBasedStateMachine):
    @initialize(by_usage=st.booleans())
    def begin(self, by_usage: bool) -> None:
        self.world = World()
        if by_usage:
            self.world.apply(BY_USAGE)
        self.messages: list[tuple[str, WorkReport]] = []
        self.running: set[tuple[str, str, int]] = set()
        self.number = 0
        self.world.connect()

    # -- users ----------------------------------------------------------------------------------

    @rule(
        team=st.sampled_from("ab"),
        urgent=st.booleans(),
        way=st.sampled_from(OnPreemption),
    )
    def submit(self, team: str, urgent: bool, way: OnPreemption) -> None:
        if len(self.world.book.workloads.records) > 12:
            return
        self.number += 1
        self.world.submit(
            team,
            f"w{self.number}",
            priority_class="urgent" if urgent else "",
            on_preemption=way,
        )

    @rule(pick=st.integers(0, 20), what=st.sampled_from(["delete", "hold", "resume"]))
    def change(self, pick: int, what: str) -> None:
        keys = sorted(self.world.book.workloads.records)
        if not keys:
            return
        namespace, name = keys[pick % len(keys)].split("/")
        identity = ("Workload", namespace, name)
        record = self.world.book.find(namespace, name)
        if record.workload.is_true("Finished") and what != "delete":
            return
        calls = {
            "delete": lambda book, now: book.delete(identity, "", now),
            "hold": lambda book, now: book.hold(identity, False, now),
            "resume": lambda book, now: book.resume(identity, now),
        }
        self.world.step(what, calls[what])
        self.world.settle()

    # -- the node -------------------------------------------------------------------------------

    def decisions(self) -> list[WorkloadKey]:
        return sorted(key.workload for key in self.world.book.nodes.assignments)

    @precondition(lambda self: self.decisions())
    @rule(pick=st.integers(0, 20), finished=st.booleans())
    def node_acts(self, pick: int, finished: bool) -> None:
        """Obeys its newest decision and writes a message about it, to be sent some time."""
        keys = self.decisions()
        key = keys[pick % len(keys)]
        one = self.world.assignment(key)
        said = self.world.said(key)
        if one.desired is Desired.STOP:
            self.messages.append(("stopped", said))
        elif one.desired in (Desired.PAUSE, Desired.CHECKPOINT):
            self.messages.append(("paused", said))
        elif one.state is PodState.DECIDED:
            self.messages.append(("refused" if finished and pick % 3 == 0 else "running", said))
        elif finished:
            self.messages.append(("finished", said))

    @precondition(lambda self: self.messages)
    @rule(pick=st.integers(0, 50), again=st.booleans())
    def message_arrives(self, pick: int, again: bool) -> None:
        what, said = self.messages[pick % len(self.messages)]
        if not again:
            self.messages.remove((what, said))
        calls = {
            "running": lambda book, now: book.desk.confirm(said, PodState.RUNNING, (), now),
            "paused": lambda book, now: book.desk.confirm(said, PodState.PAUSED, (), now),
            "refused": lambda book, now: book.desk.refuse(said, now),
            "stopped": lambda book, now: book.desk.release(said, False, now),
            "finished": lambda book, now: book.desk.release(said, True, now),
        }
        try:
            self.world.step(what, calls[what])
        except StaleEpoch:
            node = self.world.book.nodes.nodes[said.node]
            assert not node.connected or said.epoch != node.record.epoch
        self.world.settle()

    @rule()
    def node_connects_again(self) -> None:
        held = tuple(
            self.world.held(
                key,
                "running" if self.world.assignment(key).state is not PodState.PAUSED else "paused",
            )
            for key in self.decisions()
            if self.world.assignment(key).state is not PodState.DECIDED
        )
        self.world.connect(held=held)

    # -- fate -----------------------------------------------------------------------------------

    @rule(seconds=st.integers(1, 40))
    def time_passes(self, seconds: int) -> None:
        self.world.pass_time(seconds)

    @rule()
    def killed_and_restarted(self) -> None:
        used = self.world.used("a"), self.world.used("b")
        histories = self.histories()
        self.world.restart()
        assert (self.world.used("a"), self.world.used("b")) == used
        assert self.histories() == histories
        self.world.settle()
        self.node_connects_again()

    def histories(self) -> dict[str, int]:
        """Usage of each LocalQueue in an hour's time, if all stays as it is."""
        history = self.world.book.engine.history
        if history is None:
            return {}
        at_ns = self.world.now_ns + 3600 * SECOND
        return {queue: history.figure_at(queue, at_ns) for queue in history.queues()}

    # -- laws -----------------------------------------------------------------------------------

    @invariant()
    def quota_is_kept(self) -> None:
        if hasattr(self, "world"):
            assert self.world.used("a") + self.world.used("b") <= 4

    @invariant()
    def no_gpu_is_given_twice(self) -> None:
        if not hasattr(self, "world"):
            return
        for index in (0, 1):
            mine = [
                (one, share)
                for one in self.world.book.nodes.assignments.values()
                for share in one.gpus
                if share.uuid == gpu(index).uuid
            ]
            memory = sum(share.memory_bytes for _, share in mine)
            assert memory <= 80 * GIB
            resting = {
                one.key
                for one, _ in mine
                if one.state is PodState.PAUSED and one.desired is Desired.PAUSE
            }
            assert (
                sum(share.share_ppm for one, share in mine if one.key not in resting) <= 1_000_000
            )


TestManyHands = ManyHands.TestCase
TestManyHands.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)

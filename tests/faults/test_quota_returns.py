"""Quota is given back after any death: `sluice run --queue`, its job, the daemon and the controller are killed in every state of a workload, alone and together.

docs/queue/quota.md has the table."""

from __future__ import annotations

import itertools
import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest

from queuecontroller.state.access import Caller
from tests.kit.node import Node, NodeError, Tenant, until
from tests.kit.queue.controller import QueueController
from tests.kit.workplace import workplace
from tests.queue.server.callers import Party, message
from tests.queue.state.world import TEAMS

pytestmark = [
    pytest.mark.root,
    pytest.mark.faults,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(os.geteuid() != 0, reason="the node's jobs get mounts"),
]
NAMES = itertools.count(1)
LEASE_S = 4
DEADLINE_S = 120.0
JOB, DAEMON, CONTROLLER = "job", "daemon", "controller"
"""`job` is the process of `sluice run`, which becomes its job."""
TOGETHER = [
    frozenset(those)
    for count in (1, 2, 3)
    for those in itertools.combinations((JOB, DAEMON, CONTROLLER), count)
]


@dataclass
class Stage:
    controller: QueueController
    node: Node
    admin: Party
    """A call costs no process, as a command would."""
    stopped: list[int] = field(default_factory=list)

    def submit(self, *flags: str) -> Tenant:
        words = ("--queue", "team-a/q", "--gpumem", "8Gi", "--cores", "20", *flags)
        return self.node.run(f"job-{next(NAMES)}", "sleep", "600", flags=words)

    def ask(self, method: str, of: str, /, **fields: Any) -> Any:
        status, answer = self.admin.call(f"Queues/{method}", message(of, **fields))
        if status != "OK":
            raise OSError(f"{method}: {status}: {answer}")
        return answer

    def hold(self, kind: str, name: str, namespace: str = "") -> None:
        found = message("ObjectRef", kind=kind, name=name, namespace=namespace)
        self.ask("Hold", "HoldRequest", object=found)

    def resume(self, kind: str, name: str, namespace: str = "") -> None:
        self.ask("Resume", "ObjectRef", kind=kind, name=name, namespace=namespace)

    def workload(self, tenant: Tenant) -> dict[str, Any] | None:
        for one in self.ask("List", "ListRequest", kind="Workload", limit=100).objects:
            if one.name.startswith(f"{tenant.name}-"):
                found: dict[str, Any] = json.loads(one.json)
                return found
        return None

    def phase(self, tenant: Tenant) -> str:
        found = self.workload(tenant)
        return found["status"]["phase"] if found is not None else "Deleted"

    def reach(self, tenant: Tenant, *phases: str) -> None:
        try:
            until(f"{tenant.name} is {phases}", lambda: self.phase(tenant) in phases, DEADLINE_S)
        except NodeError as error:
            state = f"it is {self.phase(tenant)}, exit status {tenant.process.poll()}"
            raise NodeError(f"{error}: {state}") from None

    @property
    def reserving(self) -> int:
        found = json.loads(self.ask("Get", "ObjectRef", kind="ClusterQueue", name="a").json)
        return int(found["status"]["reservingWorkloads"])

    def freeze(self, pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        self.stopped.append(pid)

    def thaw(self) -> None:
        while self.stopped:
            pid = self.stopped.pop()
            if pid in (self.daemon_pid, self.controller_pid):
                os.kill(pid, signal.SIGCONT)

    @property
    def daemon_pid(self) -> int:
        assert self.node.daemon is not None
        return self.node.daemon.pid

    @property
    def controller_pid(self) -> int:
        assert self.controller.process is not None
        return self.controller.process.pid

    def kill(self, those: frozenset[str], tenant: Tenant) -> None:
        """All at once, then what a service manager starts again."""
        if JOB in those:
            tenant.process.kill()
        if DAEMON in those:
            self.node.kill_daemon()
        if CONTROLLER in those:
            self.controller.kill()
        if JOB in those:
            tenant.process.wait()
        if CONTROLLER in those:
            self.controller.launch()
            until("the controller answers", lambda: self.reserving >= 0, DEADLINE_S)
        if DAEMON in those:
            self.node.start()
        self.thaw()

    def returned(self, tenant: Tenant) -> None:
        """Its quota is free, once, and nothing of it is left on the node."""
        self.reach(tenant, "Deleted", "Finished")
        until("no quota is reserved", lambda: self.reserving == 0, DEADLINE_S)
        until("its grant has ended", lambda: not self.node.grants(), DEADLINE_S)

    def went_on(self, tenant: Tenant) -> None:
        """The job is let in once, and what it has comes back when it ends. A decision for its first
        submission is withdrawn after a lease, if it was submitted again."""
        self.reach(tenant, "Running")
        until("one workload has quota", lambda: self.reserving == 1, DEADLINE_S)
        assert len(self.node.grants()) == 1
        tenant.process.kill()
        tenant.process.wait()
        self.returned(tenant)


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with workplace() as directory:
        settings = [f"nodes.lease_s={LEASE_S}", "nodes.report_s=0.3", "workloads.grace_s=2"]
        controller = QueueController(directory / "queue", settings=settings)
        link = f'[queue]\nserver = "{controller.address}"\nnode_name = "n1"\n'
        node = Node(directory / "node", gpus="2xh100-80gb", settings=link)
        try:
            controller.start()
            controller.apply(TEAMS)
            node.start()
            until("it is ready", lambda: "Ready" in controller.cli("get", "nodes").stdout)
            channel = grpc.insecure_channel(controller.address)
            yield Stage(controller, node, Party("root", Caller(), channel))
            channel.close()
        except BaseException:
            print((node.directory / "daemon.log").read_text()[-3000:], controller.log[-3000:])
            raise
        finally:
            node.stop()
            controller.stop()


def named(those: frozenset[str]) -> str:
    return "+".join(sorted(those))


@pytest.fixture(autouse=True)
def resumed(stage: Stage) -> Iterator[None]:
    yield
    stage.thaw()
    stage.resume("ClusterQueue", "a")


@pytest.mark.parametrize("those", TOGETHER, ids=named)
def test_one_that_waits(stage: Stage, those: frozenset[str]) -> None:
    stage.hold("ClusterQueue", "a")
    tenant = stage.submit()
    stage.reach(tenant, "Pending")
    stage.kill(those, tenant)
    stage.resume("ClusterQueue", "a")
    if JOB in those:
        stage.returned(tenant)
    else:
        stage.went_on(tenant)


@pytest.mark.parametrize("those", TOGETHER, ids=named)
def test_one_that_is_decided_and_has_not_started(stage: Stage, those: frozenset[str]) -> None:
    """Its node has the decision to start it, but its daemon is stopped."""
    stage.hold("ClusterQueue", "a")
    tenant = stage.submit()
    stage.reach(tenant, "Pending")
    stage.freeze(stage.daemon_pid)
    stage.resume("ClusterQueue", "a")
    stage.reach(tenant, "Admitted")
    assert stage.reserving == 1
    stage.kill(those, tenant)
    if JOB in those:
        stage.returned(tenant)
    else:
        stage.went_on(tenant)


@pytest.mark.parametrize("those", TOGETHER, ids=named)
def test_one_that_runs(stage: Stage, those: frozenset[str]) -> None:
    tenant = stage.submit()
    stage.reach(tenant, "Running")
    stage.kill(those, tenant)
    if JOB in those:
        stage.returned(tenant)
    else:
        assert tenant.process.poll() is None
        stage.went_on(tenant)


@pytest.mark.parametrize("those", TOGETHER, ids=named)
def test_one_that_is_held_while_it_runs(stage: Stage, those: frozenset[str]) -> None:
    """Holding it stops it: the end is reported once, after any death meanwhile."""
    tenant = stage.submit()
    stage.reach(tenant, "Running")
    found = stage.workload(tenant)
    assert found is not None
    stage.hold("Workload", found["metadata"]["name"], "team-a")
    stage.kill(those, tenant)
    stage.returned(tenant)


@pytest.mark.parametrize(
    "those", [one for one in TOGETHER if JOB not in one], ids=named
)  # fmt: skip
def test_one_that_ended_where_the_controller_could_not_hear_of_it(
    stage: Stage, those: frozenset[str]
) -> None:
    tenant = stage.submit()
    stage.reach(tenant, "Running")
    stage.freeze(stage.controller_pid)
    tenant.process.kill()
    tenant.process.wait()
    until("its grant has ended", lambda: not stage.node.grants(), DEADLINE_S)
    if DAEMON in those and CONTROLLER not in those:
        stage.node.kill_daemon()
        stage.thaw()
        stage.node.start()
    else:
        stage.kill(those, tenant)
    stage.returned(tenant)

"""The table of rights is what the service does: every method, as every role, with own and others' things.

ann's job stands on node n1, so it is ann's and n1's; eve, node n2 and the other check are strangers to it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from queuecontroller.state.access import METHODS, TABLE, Act, Caller, Role, Target, may
from tests.kit.places import REPO
from tests.queue.server.callers import SERVICES, WIRE, Callers, callers, message
from tests.queue.state.world import TEAMS

ANN = Target("ann", frozenset({"n1"}))
NEW = itertools.count(1)
PARTIES = {
    "ann": ("user:ann",),
    "eve": ("user:eve",),
    "n1": ("node:n1",),
    "n2": ("node:n2",),
    "budget": ("check:budget",),
    "licence": ("check:licence",),
    "carol": ("admin:carol",),
    "nobody": (),
}
QUEUE = "kueue.x-k8s.io/v1beta1"


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callers]:
    with callers(tmp_path_factory.mktemp("roles")) as made:
        made.controller.apply(TEAMS)
        for name, uris in PARTIES.items():
            made.party(name, *uris)
        yield made


def workload(name: str, **more: Any) -> dict[str, Any]:
    spec = {"queueName": "q", "podSets": [{"name": "main", "count": 1, "template": {"spec": {"containers": [{"name": "c", "resources": {"requests": {"nvidia.com/gpu": "1"}}}]}}}], **more.pop("spec", {})}  # fmt: skip
    return {
        "apiVersion": QUEUE,
        "kind": "Workload",
        "metadata": {"name": name, "namespace": "team-a"},
        "spec": spec,
        **more,
    }


def ask() -> Any:
    return message("GpuAsk", gpus=1, memory_ppm=1000, share_ppm=1000)


def submit(**more: Any) -> Any:
    fields = {"namespace": "team-a", "queue": "q", "name": f"made-{next(NEW)}", "ask": ask()}
    return message("SubmitRequest", **{**fields, **more})


def renew(parties: Callers) -> None:
    """ann's job, as it was; whatever a case made of it."""
    admin, node = parties.party("carol"), parties.party("n1")
    reference = message("ObjectRef", kind="Workload", namespace="team-a", name="job")
    admin.call("Queues/Delete", reference)
    made = submit(name="job", node="n1", user="ann", command="train --password=hunter2")
    status, answer = node.call("Queues/Submit", made)
    assert status == "OK", answer
    assert (
        admin.apply({**document("ClusterQueue", "spare"), "spec": {"resourceGroups": []}})[0]
        == "OK"
    )


def document(kind: str, name: str) -> dict[str, Any]:
    return {"apiVersion": QUEUE, "kind": kind, "metadata": {"name": name}}


def reference(kind: str = "Workload", name: str = "job") -> Any:
    return message("ObjectRef", kind=kind, namespace="team-a", name=name)


@dataclass(frozen=True)
class Case:
    what: str
    method: str
    act: Act
    request: Callable[[Caller], Any]
    target: Callable[[Caller], Target | None] = lambda caller: ANN

    def expected(self, caller: Caller) -> bool:
        return may(caller, self.act, self.target(caller))


def apply(*documents: dict[str, Any]) -> Any:
    return message("ApplyRequest", objects=[json.dumps(one) for one in documents])


def checks(state: str, name: str = "budget") -> dict[str, Any]:
    return {"admissionChecks": [{"name": name, "state": state, "message": str(next(NEW))}]}


NOBODYS: Callable[[Caller], Target | None] = lambda caller: None  # noqa: E731
ITSELF: Callable[[Caller], Target | None] = lambda caller: Target(caller.user)  # noqa: E731

CASES = [
    Case("connect", "QueueNodes/Connect", Act.SESSION, lambda c: message("NodeHello", node="n1", waiting=["team-a/job"])),
    Case("report", "QueueNodes/Report", Act.SESSION, lambda c: message("NodeReport", node="n1", epoch=1 << 40)),
    Case("watch", "QueueNodes/WatchDecisions", Act.SESSION, lambda c: message("WatchDecisionsRequest", node="n1", epoch=1 << 40)),
    Case("confirm", "QueueNodes/Confirm", Act.SESSION, lambda c: message("Confirmation", node="n1", state=2, workload="team-a/job")),
    Case("release", "QueueNodes/Release", Act.SESSION, lambda c: message("ReleaseNotice", node="n1", workload="team-a/job")),
    Case("tell", "QueueNodes/Tell", Act.SESSION, lambda c: message("NodeNews", node="n1", items=[{"release": {"workload": "team-a/job"}}])),
    Case("follow all", "QueueNodes/FollowWaiting", Act.SESSION, lambda c: message("FollowWaitingRequest", node="n1", epoch=1 << 40)),
    Case("submit", "Queues/Submit", Act.SUBMIT, lambda c: submit(), ITSELF),
    Case("submit there", "Queues/Submit", Act.SUBMIT, lambda c: submit(node="n1", user=c.user), lambda c: Target(nodes=frozenset({"n1"}))),
    Case("submit as ann", "Queues/Submit", Act.SUBMIT_AS, lambda c: submit(node="n1", user="ann"), lambda c: Target(nodes=frozenset({"n1"}))),
    Case("apply a new one", "Queues/Apply", Act.SUBMIT, lambda c: apply(workload(f"new-{next(NEW)}")), ITSELF),
    Case("apply over it", "Queues/Apply", Act.CHANGE_WORKLOAD, lambda c: apply(workload("job", spec={"active": False}))),
    Case("give a priority", "Queues/Apply", Act.SET_PRIORITY, lambda c: apply(workload(f"new-{next(NEW)}", spec={"priority": 2_000_000_000})), NOBODYS),
    Case("pass a check", "Queues/Apply", Act.SET_CHECK, lambda c: apply(workload("job", status=checks("Ready"))), lambda c: Target(check="budget")),
    Case("write a status", "Queues/Apply", Act.SET_STATUS, lambda c: apply(workload(f"new-{next(NEW)}", status={"requeueState": {"count": 3}})), NOBODYS),
    Case("apply a queue", "Queues/Apply", Act.CHANGE_OBJECTS, lambda c: apply({**document("ClusterQueue", "spare"), "spec": {}}), NOBODYS),
    Case("get it", "Queues/Get", Act.SEE_WORKLOAD, lambda c: reference()),
    Case("get a queue", "Queues/Get", Act.LIST, lambda c: reference("ClusterQueue", "a"), NOBODYS),
    Case("list", "Queues/List", Act.LIST, lambda c: message("ListRequest", kind="Workload"), NOBODYS),
    Case("watch all", "Queues/Watch", Act.LIST, lambda c: message("ListRequest", kind="Workload"), NOBODYS),
    Case("follow it", "Queues/Follow", Act.SEE_WORKLOAD, lambda c: reference()),
    Case("explain it", "Queues/Explain", Act.SEE_WORKLOAD, lambda c: reference()),
    Case("hold it", "Queues/Hold", Act.CHANGE_WORKLOAD, lambda c: message("HoldRequest", object=reference())),
    Case("resume it", "Queues/Resume", Act.CHANGE_WORKLOAD, lambda c: reference()),
    Case("delete it", "Queues/Delete", Act.CHANGE_WORKLOAD, lambda c: reference()),
    Case("hold a queue", "Queues/Hold", Act.CHANGE_OBJECTS, lambda c: message("HoldRequest", object=reference("ClusterQueue", "spare")), NOBODYS),
    Case("resume a queue", "Queues/Resume", Act.CHANGE_OBJECTS, lambda c: reference("ClusterQueue", "spare"), NOBODYS),
    Case("delete a queue", "Queues/Delete", Act.CHANGE_OBJECTS, lambda c: reference("ClusterQueue", "spare"), NOBODYS),
    Case("delete a node", "Queues/Delete", Act.DELETE_NODE, lambda c: reference("Node", "n9"), NOBODYS),
    Case("open the page", "Queues/OpenPage", Act.LIST, lambda c: message("QueuePageRequest"), NOBODYS),
    Case("server", "Queues/GetServer", Act.SEE_SERVER, lambda c: message("GetServerRequest"), NOBODYS),
]  # fmt: skip

ALSO = {
    # What else it takes: a caller that reports a check's result of a workload it may not change is a check's
    # controller, and a caller that names a node is that node or an admin.
    "pass a check": lambda caller: may(caller, Act.CHANGE_WORKLOAD, ANN) or bool(caller.checks),
    "submit there": lambda caller: caller.admin or may(caller, Act.SESSION, ANN),
    "submit as ann": lambda caller: caller.admin or may(caller, Act.SESSION, ANN),
}
SILENT = {"OK", "ABORTED", "NOT_FOUND", "CANCELLED"}
"""Statuses that an allowed call may end with here: a session that is over, a node that is not
there."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.what)
def test_a_method_lets_in_whom_the_table_does(parties: Callers, case: Case) -> None:
    wrong = []
    for name in PARTIES:
        renew(parties)
        party = parties.party(name)
        status, answer = party.call(case.method, case.request(party.caller))
        allowed = case.expected(party.caller) and ALSO.get(case.what, lambda _: True)(party.caller)
        if allowed != (status in SILENT) or (not allowed and status != "PERMISSION_DENIED"):
            wrong.append(f"{name}: the table says {allowed}, the service {status}: {answer}")
    assert wrong == []


def test_every_method_and_every_right_is_tried() -> None:
    every = {f"{short}/{name}" for short, full in SERVICES.items() for name in WIRE.methods(full)}
    assert {case.method for case in CASES} == every == METHODS.keys()
    assert {case.act for case in CASES} | {Act.SEE_COMMAND} == set(TABLE)
    for case in CASES:
        assert case.act in METHODS[case.method], case.what
    assert all(row.keys() == set(Role) for row in TABLE.values())


@pytest.mark.parametrize("name", PARTIES)
def test_a_command_line_is_its_users_and_its_nodes(parties: Callers, name: str) -> None:
    renew(parties)
    party = parties.party(name)
    for method in ("Queues/Get", "Queues/Explain"):
        status, answer = party.call(method, reference())
        shown = status == "OK" and "hunter2" in answer.json
        assert shown is may(party.caller, Act.SEE_COMMAND, ANN), method
    status, answer = party.call("Queues/List", message("ListRequest", kind="Workload"))
    listed = status == "OK" and any("hunter2" in one.json for one in answer.objects)
    assert listed is (may(party.caller, Act.SEE_COMMAND, ANN) and may(party.caller, Act.LIST))


def test_the_page_shows_the_table() -> None:
    order = (Role.USER, Role.NODE, Role.CHECK, Role.ADMIN)
    lines = ["| What a call does | user | node | check | admin | In |", "|---|---|---|---|---|---|"]
    for act, row in TABLE.items():
        where = [f"`{name.partition('/')[2]}`" for name, acts in METHODS.items() if act in acts]
        reaches = " | ".join(row[role] for role in order)
        lines.append(f"| {act} | {reaches} | {', '.join(where)} |")
    assert "\n".join(lines) in (REPO / "docs" / "security.md").read_text()

"""Containers held and ended for real: cgroups of the kernel, named as a pod's, with several processes in
them of which one goes around the interposer."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodeagent.adapters.processes.cgroup_hold import CgroupRestrainer, ContainerCgroup
from nodeagent.adapters.processes.proc_facts import ProcInspector
from nodeagent.ports.watch import NotPossible
from tests.kit.cgroups import ROOTS, Container, answers, each_hierarchy, pods
from tests.kit.node import Node, until
from tests.kit.places import AT_REST, TENANT
from tests.kit.pods import PodNode, pod_node
from tests.kit.workplace import workplace

CONTAINED_S = 3.0
SLACK = 2.5
"""The promise is for a machine with room; this one runs other tests too."""
POD, OTHER = "1b4e28ba-2fa1-11d2-883f-0000000000a1", "1b4e28ba-2fa1-11d2-883f-0000000000a2"

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="making cgroups needs root"),
]


@pytest.fixture
def place(hierarchy: str) -> Iterator[dict[str, Container]]:
    with pods(hierarchy, its=f"{POD}/c1", beside=f"{POD}/c2", other=f"{OTHER}/c1") as made:
        yield made


def paths(container: Container) -> tuple[str, str]:
    """The container's path in each hierarchy, as ProcessFacts has them."""
    unified = container.hierarchy == "unified"
    return (container.path, "") if unified else ("", container.path)


@each_hierarchy
def test_the_container_of_a_process_is_found(place: dict[str, Container]) -> None:
    own, deep = place["its"].run("cat"), place["its"].run("cat", below="made-by-itself")
    assert answers(own)
    assert answers(deep)
    for process in (own, deep):
        facts = ProcInspector().facts(process.pid)
        assert facts is not None
        assert (facts.cgroup, facts.freezer) == paths(place["its"])
        assert facts.pod_uid == POD


@each_hierarchy
def test_a_freeze_holds_exactly_one_container(place: dict[str, Container]) -> None:
    restrainer = CgroupRestrainer()
    mine = [place["its"].run("cat"), place["its"].run("cat", below="inner")]
    others = [place["beside"].run("cat"), place["other"].run("cat")]
    assert all(answers(one) for one in [*mine, *others])
    restrainer.freeze(*paths(place["its"]), True)
    until("it is held", place["its"].held, CONTAINED_S * SLACK)
    assert [answers(one, 0.2) for one in mine] == [False, False]
    assert [answers(one) for one in others] == [True, True]
    assert not place["beside"].held()
    assert not place["other"].held()
    restrainer.freeze(*paths(place["its"]), False)
    assert all(answers(one) for one in mine)


def forker(container: Container) -> None:
    """Its processes are new ones all the time."""
    process = container.run("sh", "-c", "echo up; while :; do /bin/true; done", below="inner")
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"


@each_hierarchy
@pytest.mark.parametrize("first_held", [False, True], ids=["running", "held before"])
def test_a_kill_ends_exactly_one_container(place: dict[str, Container], first_held: bool) -> None:
    restrainer = CgroupRestrainer()
    mine = [place["its"].run("cat"), place["its"].run("cat", below="inner")]
    others = [place["beside"].run("cat"), place["other"].run("cat")]
    assert all(answers(one) for one in [*mine, *others])
    forker(place["its"])
    if first_held:
        restrainer.freeze(*paths(place["its"]), True)
        until("it is held", place["its"].held)
    restrainer.kill(*paths(place["its"]))
    until("no process is left in it", lambda: not place["its"].pids(), CONTAINED_S * SLACK)
    assert [one.wait(60) for one in mine] == [-signal.SIGKILL] * 2
    assert [answers(one) for one in others] == [True, True]
    # The kernel says so once the last process has left, which may take longer than its end.
    until("it is not held any more", lambda: not place["its"].held(), CONTAINED_S * SLACK)


@pytest.mark.skipif(ROOTS["unified"] is None, reason="THIS HOST HAS NO UNIFIED CGROUPS")
def test_before_linux_5_14_they_are_ended_one_by_one() -> None:
    with pods("unified", its=f"{POD}/c1", beside=f"{POD}/c2") as place:
        mine, beside = place["its"].run("cat"), place["beside"].run("cat")
        assert answers(mine)
        forker(place["its"])
        ContainerCgroup(place["its"].directory, place["its"].path, unified=True).end_each()
        until("no process is left in it", lambda: not place["its"].pids(), CONTAINED_S * SLACK)
        assert mine.wait(60) == -signal.SIGKILL
        assert answers(beside)


@each_hierarchy
def test_what_is_no_containers_own_is_never_touched(place: dict[str, Container]) -> None:
    mine = place["its"].run("cat")
    own = place["its"].path
    pod = own.rpartition("/")[0]
    for path in ("", "/", pod, f"{pod}/", f"{own}/../c1", f"{own}/inner", f"{pod}/gone", "/x"):
        both = (path, "") if place["its"].hierarchy == "unified" else ("", path)
        for act in (
            lambda: CgroupRestrainer().freeze(*both, True),  # noqa: B023
            lambda: CgroupRestrainer().kill(*both),  # noqa: B023
        ):
            with pytest.raises(NotPossible):
                act()
    assert answers(mine)


# --- the whole node ---------------------------------------------------------------------------


def acts(node: Node, pid: int) -> list[str]:
    found: list[dict[str, Any]] = node.cli_json("events", "--kind", "act")
    return [str(event["text"]) for event in found if event["pid"] == pid]


def audited(node: Node, pid: int) -> list[str]:
    with sqlite3.connect(f"file:{node.directory}/state/ledger.sqlite?mode=ro", uri=True) as db:
        rows = [json.loads(body) for (body,) in db.execute("SELECT body FROM audit ORDER BY id")]
    return [row["step"] for row in rows if row["pid"] == pid]


@pytest.fixture
def node() -> Iterator[PodNode]:
    with workplace() as directory, pod_node(directory) as made:
        yield made


def evader(node: PodNode, container: Container) -> subprocess.Popen[str]:
    """A program straight on the driver, in a pod that has a grant."""
    return container.run(*(TENANT, *AT_REST), environment=node.node.on_the_driver())


def state_of(node: PodNode, name: str) -> str:
    grant = node.node.grant(f"default/{name}/main")
    assert grant is not None
    return str(grant["state"])


@each_hierarchy
def test_who_goes_around_the_interposer_is_held_with_its_container_and_nobody_else(
    node: PodNode, hierarchy: str
) -> None:
    pod, other = (node.kubelet.admit(name, gpumem=4000, gpucores=30) for name in ("a", "b"))
    for one in (pod, other):
        node.kubelet.cdi_devices(one)
    with pods(hierarchy, its=f"{pod}/c1", beside=f"{pod}/c2", other=f"{other}/c1") as place:
        accomplice = place["its"].run("cat", below="inner")
        neighbours = [place["beside"].run("cat"), place["other"].run("cat")]
        assert all(answers(one) for one in [accomplice, *neighbours])
        process = evader(node, place["its"])
        until("its container is held", place["its"].held, CONTAINED_S * SLACK)
        assert not answers(accomplice, 0.2)
        assert [answers(one) for one in neighbours] == [True, True]
        assert not place["beside"].held()
        assert not place["other"].held()
        assert (state_of(node, "a"), state_of(node, "b")) == ("paused", "active")
        told = until("the act is told", lambda: acts(node.node, process.pid))
        assert told[-1].startswith("freeze: pid")
        assert audited(node.node, process.pid) == ["throttle", "deny_opens", "freeze"]

        # Over: the process alone has ended, what was done to the rest is taken back.
        os.kill(process.pid, signal.SIGKILL)
        if hierarchy == "freezer":  # it dies when it is let go, and not before
            node.node.cli("resume", "default/a/main")
        assert process.wait(60) == -signal.SIGKILL
        assert answers(accomplice, 60)
        until("its grant goes on", lambda: state_of(node, "a") == "active")


def test_cgroups_of_this_host_were_tried() -> None:
    assert any(root is not None for root in ROOTS.values())
    assert all(root is None or Path(root).is_dir() for root in ROOTS.values())

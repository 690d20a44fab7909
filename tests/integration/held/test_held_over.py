"""Held processes outlive their daemon and are taken over: after a daemon that was killed, with
another policy, with a cgroup that has gone meanwhile, and a person who releases them, with a daemon
and without."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.cgroups import Container, answers, each_hierarchy, pods
from tests.kit.held import config, contained, looked, rows, set_policy, stopped, undone
from tests.kit.node import Node, until
from tests.kit.places import AT_REST, REPO, TENANT
from tests.kit.pods import PodNode, pod_node
from tests.kit.workplace import workplace

HELD_S = 10.0
pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="holding others' processes needs root"),
]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path / "n", settings='[detection]\nbare_metal = "contain"\n')
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture
def evader(node: Node) -> subprocess.Popen[str]:
    """Straight on the driver, and held because of it."""
    process = node.run_bare("evader", *AT_REST).process
    until("it is stopped", lambda: stopped(process.pid), HELD_S)
    until("its row says that it is done", lambda: rows(node, "holds")[0]["done"])
    return process


def test_a_killed_daemon_is_followed_by_one_that_goes_on_holding(
    node: Node, evader: subprocess.Popen[str]
) -> None:
    (before,) = contained(node)
    assert (before["step"], before["pid"]) == ("freeze", evader.pid)
    node.kill_daemon()
    assert stopped(evader.pid)
    assert contained(node) == [before]
    node.start()
    looked(node)
    assert stopped(evader.pid)
    assert contained(node) == [before]
    assert 'sluice_contained{step="freeze"} 1' in node.metrics()
    assert 'sluice_suspicions_active{rule="unregistered_gpu_user"} 1' in node.metrics()
    freezes = [row for row in rows(node, "audit") if row["step"] == "freeze"]
    assert len(freezes) == 1
    evader.kill()
    evader.wait(60)
    until("its end ends the hold", lambda: contained(node) == [])
    assert rows(node, "holds") == []


def test_a_daemon_that_is_stopped_in_order_holds_on_as_well(
    node: Node, evader: subprocess.Popen[str]
) -> None:
    node.stop_daemon()
    assert stopped(evader.pid)
    node.start()
    looked(node)
    assert stopped(evader.pid)
    assert len(contained(node)) == 1


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ('bare_metal = "contain"', 'bare_metal = "observe"', "the policy is observe now"),
        ('bare_metal = "contain"', "enabled = false", "detection is switched off"),
    ],
    ids=["another policy", "no detection"],
)
def test_what_the_configuration_asks_for_no_more_is_taken_back_at_the_start(
    node: Node, evader: subprocess.Popen[str], before: str, after: str, why: str
) -> None:
    node.kill_daemon()
    set_policy(node, before, after)
    node.start()
    until("it goes on", lambda: not stopped(evader.pid))
    assert undone(node, "freeze") == [why]
    assert contained(node) == []
    looked(node)
    assert not stopped(evader.pid)


def test_what_ended_meanwhile_is_forgotten_without_an_act(
    node: Node, evader: subprocess.Popen[str]
) -> None:
    node.kill_daemon()
    evader.kill()
    evader.wait(60)
    node.start()
    assert contained(node) == []
    assert undone(node, "freeze") == []


def test_what_a_person_let_go_meanwhile_is_not_held_because_of_the_old_row(
    node: Node, evader: subprocess.Popen[str]
) -> None:
    node.kill_daemon()
    os.kill(evader.pid, signal.SIGCONT)
    set_policy(node, "[detection]", "[detection]\ngrace_s = 600")  # nothing new is found
    node.start()
    looked(node)
    assert not stopped(evader.pid)
    assert contained(node) == []
    assert undone(node, "freeze") == []


def test_a_person_lets_it_go_and_it_is_not_held_again_while_the_suspicion_stands(
    node: Node, evader: subprocess.Popen[str]
) -> None:
    (one,) = contained(node)
    answer = node.cli("uncontain", str(one["number"]))
    assert "freeze" in answer.stdout
    assert f"pid {evader.pid} " in answer.stdout
    assert not stopped(evader.pid)
    assert undone(node, "freeze") == ["by hand, uid 0"]
    looked(node, 4)
    assert not stopped(evader.pid)
    assert 'sluice_suspicions_active{rule="unregistered_gpu_user"} 1' in node.metrics()
    assert contained(node) == []
    again = node.cli("uncontain", str(one["number"]), check=False)
    assert again.returncode == 1
    assert f"nothing is held under number {one['number']}" in again.stderr


@pytest.mark.parametrize("words", [(), ("--all", "1")], ids=["nothing", "both"])
def test_uncontain_wants_numbers_or_all(node: Node, words: tuple[str, ...]) -> None:
    answer = node.cli("uncontain", *words, check=False)
    assert answer.returncode == 2
    assert "give numbers" in answer.stderr


def test_only_root_lets_go(node: Node, evader: subprocess.Popen[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.kit.daemon.as_nobody", "uncontain", "--all"],
        env=node.environment(),
        cwd=REPO,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "only root" in done.stderr
    assert stopped(evader.pid)


def test_without_a_daemon_it_is_let_go_all_the_same(
    node: Node, evader: subprocess.Popen[str]
) -> None:
    node.kill_daemon()
    answer = node.cli("uncontain", "--all", "--config", config(node))
    assert f"pid {evader.pid} " in answer.stdout
    assert "no daemon answers" in answer.stderr
    assert not stopped(evader.pid)
    assert undone(node, "freeze") == ["by hand, uid 0, while no daemon ran"]
    assert rows(node, "holds") == []
    again = node.cli("uncontain", "--all", "--config", config(node))
    assert again.stdout == "nothing was contained\n"


def test_a_ledger_is_not_touched_beside_its_daemon(
    node: Node, evader: subprocess.Popen[str]
) -> None:
    """A socket that is not found is no proof that no daemon serves."""
    answer = node.cli(
        *("uncontain", "--all", "--config", config(node), "--socket", "/nowhere"), check=False
    )
    assert answer.returncode == 1
    assert "another daemon" in answer.stderr
    assert stopped(evader.pid)


# --- containers and their grants --------------------------------------------------------------


@pytest.fixture
def pods_node() -> Iterator[PodNode]:
    with workplace() as directory, pod_node(directory) as made:
        yield made


def held_pod(node: PodNode, container: Container) -> subprocess.Popen[str]:
    """An evader in it; its container is frozen and its grant throttled."""
    process = container.run(*(TENANT, *AT_REST), environment=node.node.on_the_driver())
    until("its container is held", container.held, HELD_S)
    until(
        "both rows say so",
        lambda: (
            sorted(r["step"] for r in rows(node.node, "holds") if r["done"])
            == ["freeze", "throttle"]
        ),
    )
    return process


def state_of(node: PodNode, name: str) -> str:
    grant = node.node.grant(f"default/{name}/main")
    assert grant is not None
    return str(grant["state"])


@each_hierarchy
def test_a_container_stays_held_over_a_restart_and_goes_on_with_another_policy(
    pods_node: PodNode, hierarchy: str
) -> None:
    node = pods_node.node
    pod = pods_node.kubelet.admit("a", gpumem=4000, gpucores=30)
    pods_node.kubelet.cdi_devices(pod)
    with pods(hierarchy, its=f"{pod}/c1", beside=f"{pod}/c2") as place:
        accomplice = place["its"].run("cat", below="inner")
        assert answers(accomplice)
        held_pod(pods_node, place["its"])
        node.kill_daemon()
        node.start()
        looked(node)
        assert place["its"].held()
        assert state_of(pods_node, "a") == "paused"
        node.kill_daemon()
        config(node).write_text(config(node).read_text() + '[detection]\ngrants = "observe"\n')
        node.start()
        assert answers(accomplice, 20)
        assert not place["its"].held()
        assert state_of(pods_node, "a") == "active"
        assert undone(node, "freeze") == ["the policy is observe now"]
        assert undone(node, "throttle") == ["the policy is observe now"]
        assert contained(node) == []


@each_hierarchy
def test_without_a_daemon_a_container_and_its_grant_go_on(
    pods_node: PodNode, hierarchy: str
) -> None:
    """The package runs `uncontain --all` before it removes itself."""
    node = pods_node.node
    pod = pods_node.kubelet.admit("a", gpumem=4000, gpucores=30)
    pods_node.kubelet.cdi_devices(pod)
    with pods(hierarchy, its=f"{pod}/c1") as place:
        accomplice = place["its"].run("cat", below="inner")
        assert answers(accomplice)
        process = held_pod(pods_node, place["its"])
        node.kill_daemon()
        node.cli("uncontain", "--all", "--config", config(node))
        assert answers(accomplice, 20)
        assert not place["its"].held()
        process.kill()
        process.wait(20)
        node.start()
        assert state_of(pods_node, "a") == "active"
        assert contained(node) == []


@each_hierarchy
def test_a_cgroup_that_is_gone_or_another_one_is_not_touched(
    pods_node: PodNode, hierarchy: str
) -> None:
    node = pods_node.node
    pod = pods_node.kubelet.admit("a", gpumem=4000, gpucores=30)
    pods_node.kubelet.cdi_devices(pod)
    with pods(hierarchy, its=f"{pod}/c1", beside=f"{pod}/c2") as place:
        process = held_pod(pods_node, place["its"])
        node.kill_daemon()
        process.kill()
        place["its"].close()
        # Of the same name, and held by another daemon.
        place["its"] = Container(hierarchy, place["its"].path)
        other = place["its"].run("cat")
        assert answers(other)
        place["its"].hold()
        until("it is held", place["its"].held)
        config(node).write_text(config(node).read_text() + '[detection]\ngrants = "observe"\n')
        node.start()
        assert contained(node) == []
        assert undone(node, "freeze") == []
        looked(node)
        assert place["its"].held()

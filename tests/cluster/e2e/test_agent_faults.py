"""The agent itself is killed, restarted, without a disk."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import manifests
from tests.cluster.api import path_of
from tests.cluster.lab import SYSTEM, Lab
from tests.cluster.manifests import NAMESPACE
from tests.kit.node import until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
FILLER = "filler"
MOMENTS_S = [step * 0.16 for step in range(12)]
"""After a pod is created: a start takes 1 to 1.5 s here, so that each of its steps is met."""


def kill_agent(lab: Lab) -> None:
    """SIGKILL for the daemon, as the kernel would for want of memory; then its pod goes, too, since the kubelet waits minutes
    before it starts a container again that was killed some times in a row."""
    pod = lab.agent_pod()
    task = next(
        one["containerID"].partition("://")[2]
        for one in pod["status"]["containerStatuses"]
        if one["name"] == "agent"
    )
    lab.cluster.run("ctr", "tasks", "kill", "-s", "SIGKILL", task)
    lab.api.delete(path_of("pods", SYSTEM, pod["metadata"]["name"]), 0)


def test_it_is_killed_at_every_step_of_a_pod_s_start(lab: Lab) -> None:
    """Pods of a Job, as a training run has them: whatever the moment, all of them come to run with what they asked for."""
    for number, moment_s in enumerate(MOMENTS_S):
        name = f"start-{number}"
        pod = lab.gpu_pod(name, memory_mib=3000, cores=5, command="sleep 3600")
        document = manifests.owned("Job", name, pod)
        document["spec"]["backoffLimit"] = 6
        lab.apply(document)
        time.sleep(moment_s)  # the moment is what is tried, nothing is waited for
        kill_agent(lab)
        if number % 4 == 3:
            until("those so far run", lambda number=number: running(lab) == number + 1, 180)
    assert sorted(totals(lab)) == [3000] * len(MOMENTS_S)


def running(lab: Lab) -> int:
    return len(
        [one for one in lab.api.items("pods", NAMESPACE) if one["status"]["phase"] == "Running"]
    )


def totals(lab: Lab) -> list[int]:
    found = []
    for one in lab.api.items("pods", NAMESPACE):
        if one["status"]["phase"] == "Running":
            found.append(int(lab.inside(one["metadata"]["name"])["total_mib"]))
    return found


def test_a_pod_that_comes_while_the_agent_is_replaced_runs_in_the_end(lab: Lab) -> None:
    before = lab.agent_pod()
    lab.api.delete(path_of("pods", SYSTEM, before["metadata"]["name"]), 5)
    pod = lab.gpu_pod("early", memory_mib=4000, cores=20, command="sleep 3600")
    lab.apply(manifests.owned("Deployment", "early", pod))
    until(
        "another agent",
        lambda: lab.agent_pod()["metadata"]["uid"] != before["metadata"]["uid"],
        120,
    )
    until("the Deployment's pod runs", lambda: running(lab) == 1, 120)
    assert totals(lab) == [4000]


def test_tenants_do_not_notice_that_the_agent_is_replaced(lab: Lab) -> None:
    lab.run("steady", memory_mib=4000, cores=30)
    grants = lab.live()
    before = lab.agent_pod()
    lab.api.delete(path_of("pods", SYSTEM, before["metadata"]["name"]), 5)
    until(
        "another agent",
        lambda: lab.agent_pod()["metadata"]["uid"] != before["metadata"]["uid"],
        120,
    )
    assert lab.live() == grants
    assert lab.inside("steady")["total_mib"] == 4000


@pytest.fixture
def small_disk(lab: Lab) -> Iterator[Path]:
    """The agent's state on a file system of its own, as operators give it one, of 24 MiB."""
    state = "/var/lib/sluice"
    move = (
        f"mkdir -p /run/small && mount -t tmpfs -o size=24m small /run/small && cp -a {state}/. /run/small/ && "
        f"mount --bind /run/small {state}"
    )
    replace(lab, move)
    small = lab.cluster.root() / "run" / "small"
    yield small
    (small / FILLER).unlink(missing_ok=True)
    lab.clear()
    replace(
        lab,
        f"cp -a /run/small/. /run/kept 2>/dev/null; umount {state} && cp -a /run/small/. {state}/; umount /run/small",
    )


def replace(lab: Lab, command: str) -> None:
    """Runs it on the node while no agent does."""
    path = path_of("daemonsets", SYSTEM, "sluice-agent")
    aside = {"spec": {"template": {"spec": {"nodeSelector": {"nobody": "here"}}}}}
    lab.api.patch(path, aside)
    until("no agent", lambda: not lab.agent_pods(), 60)
    lab.cluster.run("sh", "-c", command)
    lab.api.patch(path, {"spec": {"template": {"spec": {"nodeSelector": {"nobody": None}}}}})
    lab.agent_pod()


def test_its_disk_is_full(lab: Lab, small_disk: Path) -> None:
    lab.run("before", memory_mib=4000, cores=20)
    filler = small_disk / FILLER
    with filler.open("wb", buffering=0) as file:
        try:
            while file.write(b"\0" * 4096):
                pass
        except OSError:
            pass
    lab.create_pod(lab.gpu_pod("during", memory_mib=4000, cores=20, command="sleep 3600"))
    until(
        "it is not started, and the reason is said",
        lambda: any(
            "Failed" in one or "Error" in one or "Unexpected" in one for one in lab.events("during")
        ),
        60,
    )
    assert lab.phase("during") != "Running"
    assert lab.phase("before") == "Running"
    filler.unlink()
    lab.api.delete(path_of("pods", NAMESPACE, "during"), 0)
    until("it is gone", lambda: lab.pod("during") is None, 60)
    lab.run("after", memory_mib=4000, cores=20, command="sleep 3600")
    assert lab.inside("after")["total_mib"] == 4000

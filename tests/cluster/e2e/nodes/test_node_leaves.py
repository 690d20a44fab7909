"""One of two nodes is cordoned, drained, and lost with its power: pods move to the other, and the extender and the queue follow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.cluster import manifests
from tests.cluster.api import ApiError, path_of
from tests.cluster.e2e.nodes.pair import FIRST, QUEUE_NAME, SECOND, Pair
from tests.cluster.lab import AGENT, QUEUE, SYSTEM
from tests.kit.node import until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
HERE, THERE = FIRST.hostname, SECOND.hostname
TEAM, PODS = "moving", 2
LARGE_MIB = 50_000
"""More than half of a card, so that two of them cannot be on one."""


@contextmanager
def cordoned(lab: Pair, node: str) -> Iterator[None]:
    lab.kubectl("cordon", node)
    try:
        yield
    finally:
        lab.kubectl("uncordon", node)


@pytest.fixture
def there(pair: Pair) -> Iterator[Pair]:
    """Queued and other pods, all on the second node. In the end both nodes take pods."""
    pair.queue(TEAM, 4)
    with cordoned(pair, HERE):
        for name, labels in (("queued", {QUEUE_NAME: TEAM}), ("free", {})):
            pod = pair.gpu_pod(name, memory_mib=4000, cores=10, command="sleep 3600")
            pair.apply(manifests.owned("Deployment", name, pod, PODS, labels=labels))
        until("they run there", lambda: all_run(pair, THERE), 120)
    assert pair.used(TEAM)["nvidia.com/gpu"] == str(PODS)
    yield pair
    if not pair.second.alive():
        pair.second.up()
    pair.kubectl("uncordon", HERE, THERE)


def all_run(lab: Pair, node: str) -> bool:
    return all(len(lab.running_on(node, app=name)) == PODS for name in ("queued", "free"))


def waits(lab: Pair, name: str) -> list[str]:
    return [one for one in lab.events(name) if one.startswith("FailedScheduling")]


def large(lab: Pair, name: str) -> dict[str, Any]:
    return lab.gpu_pod(name, memory_mib=LARGE_MIB, cores=10, command="sleep 3600")


def test_a_cordoned_node_takes_no_pod_until_it_is_uncordoned(pair: Pair) -> None:
    with cordoned(pair, THERE):
        for number in range(3):
            pair.create_pod(large(pair, f"large-{number}"))
        until("two run here", lambda: len(pair.running_on(HERE)) == 2, 90)
        (third,) = {f"large-{number}" for number in range(3)} - set(pair.running_on(HERE))
        until("the third waits", lambda: waits(pair, third), 60)
        assert pair.grants_on(THERE) == []
    pair.wait_for(third)
    assert pair.running_on(THERE) == [third]
    assert pair.inside(third)["total_mib"] == LARGE_MIB


def test_a_drained_node_s_pods_move(there: Pair) -> None:
    words = ("--ignore-daemonsets", "--delete-emptydir-data", "--timeout=180s")
    there.kubectl("drain", THERE, *words)
    until("all run here", lambda: all_run(there, HERE), 120)
    until("no grant is left there", lambda: there.grants_on(THERE) == [], 60)
    assert len(there.grants_on(HERE)) == 2 * PODS
    until("quota is counted once", lambda: there.used(TEAM)["nvidia.com/gpu"] == str(PODS), 60)
    until("the controller is whole again", lambda: there.ready("deployments", QUEUE), 180)


def test_a_lost_node_s_pods_move_and_its_return_disturbs_nobody(there: Pair) -> None:
    """The power of the node goes. How long it takes until Kubernetes moves its pods is set in conftest.py."""
    there.second.down(keep=True)
    until("the node is not ready", lambda: not there.is_ready(THERE), 120)
    until("all run here", lambda: all_run(there, HERE), 180)
    for number in range(3):
        there.create_pod(large(there, f"large-{number}"))
    until("what fits here runs", lambda: len(large_here(there)) == 2, 90)
    (third,) = {f"large-{number}" for number in range(3)} - large_here(there)
    until("the third waits", lambda: waits(there, third), 60)
    assert not (there.pod(third) or {})["spec"].get("nodeName"), "not on the node that is lost"
    grants = there.grants_on(HERE)
    there.second.up()
    until("its agent is back", lambda: there.ready("daemonsets", AGENT), 180)
    until("it offers its GPUs", lambda: there.offered(THERE) > 0, 60)
    there.wait_for(third, deadline_s=120)
    assert there.running_on(THERE) == [third]
    until("those that were there are gone", lambda: there.grants_on(THERE) == [f"default/{third}/main"], 120)  # fmt: skip
    assert there.grants_on(HERE) == grants
    assert there.used(TEAM)["nvidia.com/gpu"] == str(PODS)
    assert there.inside(third)["total_mib"] == LARGE_MIB


@contextmanager
def no_replica(lab: Pair) -> Iterator[None]:
    replicas = ("scale", "deployment", QUEUE, "-n", SYSTEM)
    lab.kubectl(*replicas, "--replicas=0")
    until("no replica is left", lambda: not lab.queue_tasks(), 90)
    try:
        yield
    finally:
        lab.kubectl(*replicas, "--replicas=2")


def small(lab: Pair, name: str, **spec: Any) -> dict[str, Any]:
    return lab.gpu_pod(name, memory_mib=4000, cores=10, command="sleep 3600", **spec)


def test_pods_with_shares_are_refused_while_no_replica_answers(pair: Pair) -> None:
    """If they were created, a bare pod and those of a Job would stay Pending for ever."""
    with no_replica(pair):
        for kind in ("Job", "Deployment"):
            name = f"later-{kind.lower()}"
            pair.apply(manifests.owned(kind, name, small(pair, name), PODS, labels={}))
        with pytest.raises(ApiError, match=r"failed calling webhook .*new-shares"):
            pair.create_pod(small(pair, "bare"))

        def refused() -> set[str]:
            found = pair.api.items("events", "default")
            return {
                one["involvedObject"]["kind"]
                for one in found
                if one.get("reason") == "FailedCreate" and "new-shares" in one["message"]
            }

        until("they try again", lambda: refused() == {"Job", "ReplicaSet"}, 60)
        assert pair.pods() == []
    until("both run", lambda: all(running(pair, f"later-{one}") == PODS for one in ("job", "deployment")), 180)  # fmt: skip
    job: dict[str, Any] = pair.api.get(path_of("jobs", "default", "later-job"))
    assert not job["status"].get("failed")


def test_pods_that_were_created_while_no_replica_answered_are_created_again(pair: Pair) -> None:
    """With the policy Ignore they keep the default scheduler, which does not know of shares, and cannot change it."""
    pair.install({"queue.webhooks.queuedFailurePolicy": "Ignore"})
    try:
        with no_replica(pair):
            pair.apply(manifests.owned("Deployment", "missed", small(pair, "missed"), PODS, labels={}))  # fmt: skip

            def missed() -> list[str]:
                names = (one["metadata"]["name"] for one in pair.pods(app="missed"))
                return [one for one in names if waits(pair, one)]

            until("they wait", lambda: len(missed()) == PODS, 60)
            before = {one["metadata"]["uid"] for one in pair.pods(app="missed")}
        until("others run", lambda: running(pair, "missed") == PODS, 120)
        assert not before & {one["metadata"]["uid"] for one in pair.pods(app="missed")}
    finally:
        pair.clear()
        pair.install()


def running(lab: Pair, app: str) -> int:
    return sum(one["status"].get("phase") == "Running" for one in lab.pods(app=app))


def large_here(lab: Pair) -> set[str]:
    return {one for one in lab.running_on(HERE) if one.startswith("large-")}

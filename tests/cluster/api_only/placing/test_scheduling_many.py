"""A thousand pods at once: each is placed, or refused with a reason that is true, and no card is promised twice meanwhile; also
while the leader is killed."""

from __future__ import annotations

import http.client
import json
import random
import re
import signal
import ssl
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.control_plane import ControlPlane
from tests.cluster.fixtures import control_plane
from tests.cluster.queueing import Replica, define
from tests.cluster.scheduling import (
    MIB,
    PODS,
    Accountant,
    Fleet,
    Service,
    bound,
    clear,
    create_all,
    given,
    gpu_pod,
    placement,
    refusal,
    replicas,
    scheduler,
)
from tests.kit.node import until

__all__ = ["control_plane"]
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]
NODES, GPUS, PODS_AT_ONCE = 50, 4, 1000
SETTLED_S = 600
NO_PLACE = f"0/{NODES} nodes are available"
RESTS_S = 12.0
"""The scheduler tries again after 10 s at most."""


@pytest.fixture(scope="module")
def plane(control_plane: ControlPlane) -> ControlPlane:
    define(control_plane)
    return control_plane


def asked(n: int) -> dict[str, Any]:
    """More than there is: 200 cards."""
    kind = n % 10
    if kind < 2:
        return gpu_pod(f"p-{n}", count=1, gpucores=100)
    if kind < 7:
        return gpu_pod(f"p-{n}", count=1, gpumem=20_000, gpucores=25)
    if kind < 9:
        return gpu_pod(f"p-{n}", count=1, gpumem=8_000)
    return gpu_pod(f"p-{n}", count=2, gpumem=30_000, gpucores=40)


def settled(accountant: Accountant) -> list[dict[str, Any]]:
    """When each is placed, or said to have no place, and that for longer than the scheduler rests between two tries. That
    its last try found no leader says nothing about a pod: it is tried again."""

    def over() -> bool:
        pods = list(accountant.pods.values())
        return all(bound(one) or NO_PLACE in refusal(one) for one in pods)

    before = -1
    while count_bound(accountant) != before or not over():
        before = count_bound(accountant)
        until("each is placed or refused", over, SETTLED_S)
        time.sleep(RESTS_S)
    return list(accountant.pods.values())


def judge(fleet: Fleet, pods: list[dict[str, Any]]) -> None:
    """Check that a refused pod would find no room now, and that its message names the shortage."""
    held = given(pods)
    alone = {
        one["uuid"]
        for pod in pods
        for shares in placement(pod).get("containers", {}).values()
        for one in shares
        if one.get("alone")
    }
    refused = [one for one in pods if not bound(one)]
    assert refused, "more was asked for than there is"
    for pod in refused:
        limits = pod["spec"]["containers"][0]["resources"]["limits"]
        count, cores = int(limits["nvidia.com/gpu"]), int(limits.get("nvidia.com/gpucores", "0"))
        memory = int(limits.get("nvidia.com/gpumem", "0").replace("k", "000")) * MIB or fleet.memory
        for name in fleet.names:
            fits = 0
            for uuid in fleet.uuids(name):
                used, time_, pods_there = held.get(uuid, (0, 0, 0))
                room = fleet.memory - used >= memory and 1_000_000 - time_ >= cores * 10_000
                company = pods_there and (cores == 100 or uuid in alone)
                fits += room and pods_there < 10 and not company
            assert fits < count, f"{pod['metadata']['name']} would fit on {name}: {refusal(pod)}"
        said = refusal(pod)
        assert NO_PLACE in said, said
        assert re.search(rf"needs {count} GPUs? with ", said), said


def test_a_thousand_pods_at_once(plane: ControlPlane, tmp_path: Path) -> None:
    with replicas(plane, tmp_path) as (replica,):
        fleet = make_fleet(plane, {tmp_path / "0.sock": replica})
        until("it decides", replica.leads, 60)
        with fleet, scheduler(plane, tmp_path, replica.asked_port):
            until("all report", lambda: fleet.sessions_total >= NODES, 120)
            with Accountant(plane, fleet.memory) as accountant:
                create_all(plane, [asked(n) for n in range(PODS_AT_ONCE)])
                until("all are there", lambda: len(accountant.pods) == PODS_AT_ONCE, 120)
                pods = settled(accountant)
                judge(fleet, pods)
                some = random.Random(1).sample([one for one in pods if bound(one)], 100)
                for one in some:  # what is free again is given again
                    plane.api.delete(f"{PODS}/{one['metadata']['name']}", 0)
                judge(fleet, settled(accountant))
            assert accountant.wrong == []
            assert accountant.events > PODS_AT_ONCE
    clear(plane)


def test_a_thousand_pods_while_leaders_are_killed(plane: ControlPlane, tmp_path: Path) -> None:
    with replicas(plane, tmp_path, 2) as both:
        fleet = make_fleet(plane, {tmp_path / f"{n}.sock": one for n, one in enumerate(both)})
        until("one decides", lambda: any(one.leads() for one in both), 60)
        with (
            fleet,
            Service([one.asked_port for one in both]) as service,
            scheduler(plane, tmp_path, service.port),
            Accountant(plane, fleet.memory) as accountant,
        ):
            until("all report", lambda: fleet.sessions_total >= NODES, 120)
            create_all(plane, [asked(n) for n in range(PODS_AT_ONCE)])
            for placed in (100, 200, 300):
                kill_the_leader(both, accountant, placed)
            judge(fleet, settled(accountant))
            assert accountant.wrong == []
    clear(plane)


def kill_the_leader(both: list[Replica], accountant: Accountant, placed: int) -> None:
    """Once so many are placed; another takes over, and it comes back."""
    until("some are placed", lambda: count_bound(accountant) >= placed, 300)
    leader = next(one for one in both if is_leading(one))
    other = next(one for one in both if one is not leader)
    leader.end(signal.SIGKILL)
    until("the other takes over", lambda: is_leading(other), 120)
    leader.start()


def test_who_does_not_lead_hands_questions_on(plane: ControlPlane, tmp_path: Path) -> None:
    with replicas(plane, tmp_path, 2) as both:
        until("one decides", lambda: any(is_leading(one) for one in both), 60)
        leader = next(one for one in both if is_leading(one))
        (follower,) = (one for one in both if one is not leader)
        question = {"Pod": gpu_pod("none", gpumem=1000), "NodeNames": ["there-is-none"]}

        def hopeless() -> str:
            text = asked_of(tmp_path, follower.asked_port, "filter", question)
            return str(text.get("FailedAndUnresolvableNodes", {}).get("there-is-none", ""))

        until("the leader's answer comes", hopeless, 60)
        assert "its agent does not report" in hopeless()
        leader.end(signal.SIGKILL)
        answer = asked_of(tmp_path, follower.asked_port, "filter", question)
        assert "does not answer" in answer["Error"] or "does not lead" in answer["Error"]


def asked_of(place: Path, port: int, verb: str, body: object) -> dict[str, Any]:
    context = ssl.create_default_context(cafile=str(place / "ca.crt"))
    context.load_cert_chain(place / "scheduler.crt", place / "scheduler.key")
    connection = http.client.HTTPSConnection("localhost", port, context=context, timeout=60)
    try:
        connection.request("POST", f"/scheduler/{verb}", json.dumps(body))
        answer = connection.getresponse()
        assert answer.status == 200
        return dict(json.loads(answer.read()))
    finally:
        connection.close()


def make_fleet(plane: ControlPlane, sockets: dict[Path, Replica]) -> Fleet:
    fleet = Fleet(plane, sockets, gpus=GPUS)
    known = {one["metadata"]["name"] for one in plane.api.get("/api/v1/nodes")["items"]}
    for n in range(NODES):
        if f"gpu-{n}" in known:
            fleet.names.append(f"gpu-{n}")
        else:
            fleet.add(f"gpu-{n}")
    return fleet


def is_leading(replica: Replica) -> bool:
    """It placed pods last, in this life."""
    return replica.process is not None and "placing pods" in replica.life


def count_bound(accountant: Accountant) -> int:
    return sum(bool(bound(one)) for one in list(accountant.pods.values()))

"""`helm upgrade` of all that the chart has, under a stream of pods. SLUICE_CLUSTER_STREAM: how many (200)."""

from __future__ import annotations

import os
import threading
from collections import Counter

import pytest

from tests.cluster.api import path_of
from tests.cluster.e2e.nodes.pair import FIRST, SECOND, Pair
from tests.cluster.lab import SYSTEM
from tests.cluster.manifests import NAMESPACE
from tests.kit.node import until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]
PODS = int(os.environ.get("SLUICE_CLUSTER_STREAM", "200"))
AT_ONCE = 24
"""Pods that have not ended; both nodes together can run twenty for each of two GPUs."""
CHANGED = {
    "agent.config": "[kubelet]\nenabled = true\ndefault_memory_mib = 2000\n",
    "agent.podAnnotations": {"rolled": "out"},
    "queue.podAnnotations": {"rolled": "out"},
    "queue.config": '[kubernetes]\nevents = "all"\n',
    "scheduler.nodePolicy": "spread",
}


def test_no_pod_of_two_hundred_fails_in_an_upgrade(pair: Pair) -> None:
    agents = pair.agent_pods()
    before = {one["metadata"]["uid"] for one in agents}
    for one in agents:
        threading.Thread(
            target=print_log, args=(pair, one["metadata"]["name"]), daemon=True
        ).start()
    errors: list[BaseException] = []

    def upgrade() -> None:
        try:
            pair.install(CHANGED)
        except BaseException as error:
            errors.append(error)

    rolling = threading.Thread(target=upgrade)
    ended: Counter[str] = Counter()
    told: list[str] = []
    for number in range(PODS):
        name = f"stream-{number}"
        until("there is room", lambda: len(left(pair, ended, told)) < AT_ONCE, 300)
        if number == PODS // 8:
            rolling.start()
        pair.create_pod(pair.gpu_pod(name, memory_mib=1000, cores=2, command="sleep 1"))
    rolling.join()
    assert errors == []
    until("all have ended", lambda: not left(pair, ended, told), 600)
    assert replica_nodes(pair) == {FIRST.hostname, SECOND.hostname}, "one each, also after it"
    assert not before & {one["metadata"]["uid"] for one in pair.agent_pods()}, "agents are others"
    assert told == [], "\n".join(told)
    assert dict(ended) == {"Succeeded": PODS}
    pair.install()


def print_log(lab: Pair, name: str) -> None:
    """Print the whole log of an agent once it has ended: it is gone with its pod, and a report needs it."""
    print(lab.kubectl("logs", "--namespace", SYSTEM, "--follow", "--timestamps", name))


def replica_nodes(lab: Pair) -> set[str]:
    """Nodes of the controller's replicas."""
    pods = lab.api.items("pods", SYSTEM, labelSelector="app.kubernetes.io/component=queue")
    return {one["spec"]["nodeName"] for one in pods if "deletionTimestamp" not in one["metadata"]}


def left(lab: Pair, ended: Counter[str], told: list[str]) -> list[str]:
    """Names of pods that have not ended. Those that have are counted, once, and deleted."""
    found = []
    for one in lab.pods():
        name, status = one["metadata"]["name"], one["status"]
        if status["phase"] in ("Succeeded", "Failed"):
            ended[status["phase"]] += 1
            if status["phase"] == "Failed":
                states = [each.get("state") for each in status.get("containerStatuses") or ()]
                times = {each["type"]: each["lastTransitionTime"] for each in status["conditions"]}
                why = f"{status.get('reason')}: {status.get('message')}"
                told.append(f"{name} on {one['spec'].get('nodeName')}: {why}; {states}; {times}")
            lab.api.delete(path_of("pods", NAMESPACE, name), 0)
        else:
            found.append(name)
    return found

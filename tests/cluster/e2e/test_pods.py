"""Pods with HAMi's resources, as users write them, placed by the stock scheduler."""

from __future__ import annotations

import json
import re

import pytest

from tests.cluster import manifests
from tests.cluster.api import path_of
from tests.cluster.figures import Figures
from tests.cluster.lab import Lab
from tests.cluster.manifests import NAMESPACE
from tests.cluster.shares import measure
from tests.kit.node import until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
CONTEXT_BYTES = 300 << 20
"""Less than what any simulated card's context takes."""
"""More than half of a card, so that two of them cannot be on one."""


def test_two_pods_on_one_gpu_have_the_shares_they_asked_for(lab: Lab, figures: Figures) -> None:
    lab.run("third", memory_mib=8000, cores=30)
    lab.run("rest", memory_mib=8000, cores=60)
    cards = {
        labels["gpu"] for name, labels, _ in lab.metrics() if name == "sluice_grant_sm_limit_ratio"
    }
    assert len(cards) == 1, "what fits onto one card is packed there"
    measure(lab, {"third": 0.3, "rest": 0.6}, figures)
    # NVML names their processes by the node's pids: so their contexts are charged, and no process is taken for one outside a grant.
    for labels in (one for n, one, _ in lab.metrics() if n == "sluice_grant_info"):
        used = lab.metric("sluice_grant_memory_used_bytes", grant=labels["grant"]) or 0
        assert used >= CONTEXT_BYTES, labels["name"]
    assert (lab.metric("sluice_detections_total") or 0) == 0


def test_a_program_is_shown_its_grant_and_can_take_no_more(lab: Lab) -> None:
    lab.run("small", memory_mib=8000, cores=30, command="sleep 3600")
    told = lab.inside("small")
    assert (told["gpus"], told["cards"]) == (1, 1)
    assert told["total_mib"] == told["nvml_total_mib"] == 8000
    assert 8000 - 1024 <= told["taken_mib"] <= 8000


def test_a_pod_that_says_nothing_has_the_defaults(lab: Lab) -> None:
    lab.run("plain", memory_mib=None, cores=None, command="sleep 3600")
    assert lab.inside("plain")["gpus"] == 1


def test_init_container_and_sidecar_have_the_pod_s_own(lab: Lab) -> None:
    """The kubelet hands the init container's devices on to the sidecar, so those two ask for the same here: they share one
    grant, the larger of what both want (docs/pods.md)."""
    image = lab.image
    document = lab.gpu_pod("composed", memory_mib=6000, cores=20, command="sleep 3600")
    told = f"python3 -c '{manifests.READ}' > /told/init"
    setup = manifests.container("setup", image, told, 1, 2000, 10)
    sidecar = manifests.container("helper", image, "sleep 3600", 1, 2000, 10)
    volume = {"name": "told", "mountPath": "/told"}
    setup["volumeMounts"] = [volume]
    document["spec"]["containers"][0]["volumeMounts"] = [volume]
    document["spec"]["volumes"] = [{"name": "told", "emptyDir": {}}]
    document["spec"]["initContainers"] = [setup, {**sidecar, "restartPolicy": "Always"}]
    lab.create_pod(document)
    lab.wait_for("composed")
    assert json.loads(lab.exec("composed", "cat", "/told/init"))["total_mib"] == 2000
    assert lab.inside("composed")["total_mib"] == 6000
    assert lab.inside("composed", "helper")["total_mib"] == 2000


def test_a_container_that_restarts_has_the_same_grant(lab: Lab) -> None:
    lab.run("again", memory_mib=4000, cores=20, restart="Always", command="sleep 3600")
    before = lab.live()
    lab.end_process("again")
    path = path_of("pods", NAMESPACE, "again")
    until(
        "it has started again",
        lambda: (
            (s := lab.api.get(path)["status"]["containerStatuses"][0])["restartCount"] == 1
            and s["ready"]
        ),
        60,
    )
    assert lab.live() == before
    assert lab.inside("again")["total_mib"] == 4000


def test_a_job_of_twenty_pods_at_once(lab: Lab) -> None:
    pod = lab.gpu_pod("many", memory_mib=4000, cores=5)
    lab.apply(manifests.owned("Job", "many", pod, 20))

    def running() -> bool:
        pods = lab.api.items("pods", NAMESPACE, labelSelector="app=many")
        return [one["status"]["phase"] for one in pods].count("Running") == 20

    until("all twenty run", running, 120)
    assert len(lab.live()) == 20
    assert lab.given_twice() == []


def test_what_does_not_fit_waits_and_its_events_say_what_is_free(lab: Lab) -> None:
    """Sums say there is room, no single card has it: the node refuses with amounts, and starts it when there is room."""
    for number in range(2):
        lab.run(f"large-{number}", memory_mib=50000, cores=10, command="sleep 3600")
    lab.create_pod(lab.gpu_pod("waits", memory_mib=50000, cores=10, command="sleep 3600"))
    said = until(
        "its events say why",
        lambda: [one for one in lab.events("waits") if "can give it now" in one],
        60,
    )
    assert re.search(r"GPU 0 .*\d.*GPU 1 .*\d", said[0], re.DOTALL), "with the amounts of each card"
    assert lab.phase("waits") == "Pending"
    lab.delete("large-0")
    lab.wait_for("waits", deadline_s=120)


def test_two_whole_gpus_for_one_pod(lab: Lab) -> None:
    lab.run("wide", gpus=2, memory_mib=10000, cores=50, command="sleep 3600")
    assert lab.inside("wide")["gpus"] == 2


def test_the_documented_manifest_works_as_it_stands(lab: Lab) -> None:
    """The one of docs/pods.md: 8000 MiB, 30 %."""
    lab.run("documented", memory_mib=8000, cores=30)
    assert lab.inside("documented")["total_mib"] == 8000

"""`helm upgrade` under running tenants, and `helm uninstall`, after which nothing is left on the node or in the API."""

from __future__ import annotations

import pytest

from tests.cluster.figures import Figures
from tests.cluster.lab import Lab
from tests.cluster.leftovers import left_in_the_api, left_on_the_node
from tests.cluster.shares import measure
from tests.kit.node import until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]


def test_an_upgrade_under_running_tenants(lab: Lab, figures: Figures) -> None:
    lab.run("third", memory_mib=8000, cores=30)
    lab.run("rest", memory_mib=8000, cores=60)
    before = lab.live()
    agent = lab.agent_pod()["metadata"]["uid"]
    lab.install({"agent.config": "[kubelet]\nenabled = true\ndefault_memory_mib = 2000\n"})
    until("another agent", lambda: lab.agent_pod()["metadata"]["uid"] != agent, 120)
    assert lab.live() == before
    measure(lab, {"third": 0.3, "rest": 0.6}, figures)
    assert lab.inside("third")["total_mib"] == 8000
    lab.run("later", memory_mib=None, cores=None, command="sleep 3600")
    assert lab.inside("later")["total_mib"] == 2000, "the new settings hold"


def test_uninstalling_leaves_nothing(installed: Lab) -> None:
    lab = installed
    lab.clear()
    lab.uninstall()
    until("the kubelet offers no GPU", lambda: lab.allocatable("nvidia.com/gpu") == 0, 60)
    assert left_in_the_api(lab) == []
    assert left_on_the_node(lab) == []

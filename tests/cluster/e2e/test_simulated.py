"""A node without a driver, with the chart's simulated GPUs and the strategy for older kubelets: another path through everything,
from installing to uninstalling. SLUICE_KUBERNETES_ALSO names another minor for it than the other scenarios have."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.conftest import settle
from tests.cluster.figures import Figures
from tests.cluster.lab import Lab
from tests.cluster.leftovers import left_in_the_api, left_on_the_node
from tests.cluster.machine.node import GPUS, Cluster
from tests.cluster.programs import pins, product
from tests.cluster.shares import measure

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]
MINOR = os.environ.get("SLUICE_KUBERNETES_ALSO") or pins.wanted_minor()
SETTINGS = {
    "simulatedGpus": GPUS,
    "agent.config": '[kubelet]\nenabled = true\nstrategy = "cdi-annotations"\n',
}


@pytest.fixture(scope="module")
def plain(images: product.Images, figures: Figures, place: Path) -> Iterator[Lab]:
    helm = product.helm()
    with Cluster(place / "simulated", minor=MINOR, driver=False) as cluster:
        figures.versions.append(cluster.programs.version)
        lab = Lab(cluster, images, helm)
        lab.import_images()
        lab.install(SETTINGS)
        yield lab


def test_pods_have_their_own_limits_and_shares(plain: Lab, figures: Figures) -> None:
    version = plain.api.get("/version")["gitVersion"]
    assert version == f"v{plain.cluster.programs.version}"
    plain.run("third", memory_mib=8000, cores=30)
    plain.run("rest", memory_mib=8000, cores=60)
    assert plain.inside("third")["total_mib"] == 8000
    measure(plain, {"third": 0.3, "rest": 0.6}, figures)
    settle(plain, figures)
    plain.clear()


def test_restarts_of_kubelet_and_agent(plain: Lab, figures: Figures) -> None:
    plain.run("steady", memory_mib=4000, cores=20)
    before = list(plain.live())
    plain.cluster.restart("kubelet")
    plain.run("after", memory_mib=4000, cores=20, command="sleep 3600")
    assert before[0] in list(plain.live())
    assert plain.inside("after")["total_mib"] == 4000
    settle(plain, figures)
    plain.clear()


def test_uninstalling_leaves_nothing(plain: Lab) -> None:
    plain.uninstall()
    assert left_in_the_api(plain) == []
    assert left_on_the_node(plain) == []

"""The oldest Kubernetes we claim, on a node without a driver, with the chart's simulated GPUs and the strategy for older
runtimes: another path through everything, from installing to uninstalling."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import pins, product
from tests.cluster.conftest import settle
from tests.cluster.figures import Figures
from tests.cluster.lab import Lab
from tests.cluster.node import GPUS, Cluster
from tests.cluster.test_pods import measure
from tests.cluster.test_upgrade import left_in_the_api, left_on_the_node

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]
OLDEST = list(pins.MINORS)[-1]
SETTINGS = {
    "simulatedGpus": GPUS,
    "agent": {"config": '[kubelet]\nenabled = true\nstrategy = "cdi-annotations"\n'},
}


@pytest.fixture(scope="module")
def oldest(images: product.Images, figures: Figures, place: Path) -> Iterator[Lab]:
    helm = product.helm()
    with Cluster(place / "oldest", minor=OLDEST, driver=False) as cluster:
        figures.versions.append(cluster.programs.version)
        lab = Lab(cluster, images, helm)
        lab.import_images()
        lab.install(**SETTINGS)
        yield lab


def test_pods_have_their_own_limits_and_shares(oldest: Lab, figures: Figures) -> None:
    version = oldest.api.get("/version")["gitVersion"]
    assert version == f"v{oldest.cluster.programs.version}"
    oldest.run("third", memory_mib=8000, cores=30)
    oldest.run("rest", memory_mib=8000, cores=60)
    assert oldest.inside("third")["total_mib"] == 8000
    measure(oldest, {"third": 0.3, "rest": 0.6}, figures)
    settle(oldest, figures)
    oldest.clear()


def test_restarts_of_kubelet_and_agent(oldest: Lab, figures: Figures) -> None:
    oldest.run("steady", memory_mib=4000, cores=20)
    before = list(oldest.live())
    oldest.cluster.restart("kubelet")
    oldest.run("after", memory_mib=4000, cores=20, command="sleep 3600")
    assert before[0] in list(oldest.live())
    assert oldest.inside("after")["total_mib"] == 4000
    settle(oldest, figures)
    oldest.clear()


def test_uninstalling_leaves_nothing(oldest: Lab) -> None:
    oldest.uninstall()
    assert left_in_the_api(oldest) == []
    assert left_on_the_node(oldest) == []

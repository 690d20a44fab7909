"""Two nodes on which Sluice decides about queued pods and places all, shared by the files of this folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.conftest import settle
from tests.cluster.e2e.nodes.pair import Pair
from tests.cluster.figures import Figures
from tests.cluster.machine.node import Cluster, Worker
from tests.cluster.programs import product

LOST_S = 20
"""Instead of 50 s until a silent node is not ready, and 300 s more until its pods are evicted."""


@pytest.fixture(scope="session")
def figures() -> Figures:
    """Not written: those of the run are the other lane's."""
    return Figures()


@pytest.fixture(scope="session")
def nodes(images: product.Images, place: Path) -> Iterator[Pair]:
    """Without Sluice."""
    if os.geteuid() != 0:
        pytest.skip("a cluster needs root")
    helm = product.helm()
    with (
        Cluster(place / "first", lost_s=LOST_S) as cluster,
        Worker(cluster, place / "second") as second,
    ):
        lab = Pair(cluster, second, images, helm)
        lab.import_images()
        yield lab


@pytest.fixture(scope="session")
def installed_pair(nodes: Pair) -> Pair:
    nodes.install()
    return nodes


@pytest.fixture
def pair(installed_pair: Pair, figures: Figures) -> Iterator[Pair]:
    yield installed_pair
    settle(installed_pair, figures)
    installed_pair.clear()

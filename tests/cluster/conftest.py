"""The cluster that the scenarios share: brought up and installed once, taken down at the end, also after Ctrl-C.

Each scenario begins with no workload, and ends with the questions that must hold after every one: no running pod without a
grant, no grant without a pod, nothing given twice.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.cluster.figures import Figures
from tests.cluster.lab import LAST_LINES, Lab
from tests.cluster.machine import cgroups
from tests.cluster.machine.node import Cluster
from tests.cluster.programs import product
from tests.cluster.programs.build import Unbuildable, go
from tests.cluster.queueing import Replica
from tests.kit.node import NodeError, until

ORDER = (
    "test_constants",
    "test_control_plane",
    "test_kueue_objects",
    "test_queueing",
    "test_queueing_webhooks",
    "test_queueing_killed",
    "test_nodes_report",
    "test_scheduling",
    "test_scheduling_many",
    "test_tokens",
    "test_install",
    "test_pods",
    "test_limits",
    "test_queued",
    "test_metrics",
    "test_faults",
    "test_agent_faults",
    "test_timing",
    "test_upgrade",
    "test_dra",
    "test_simulated",
    "test_owners_manifests",
    "test_counted",
    "test_node_leaves",
    "test_rollout",
)
"""Files, in the order in which they run: the one that uninstalls comes late, further clusters last."""
SETTLED_S = 15.0

_figures = Figures()


def pytest_configure() -> None:
    """Told to end, as by a deadline of CI, the run takes its clusters down like after Ctrl-C."""
    signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(number: int, frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough: what follows takes some seconds
    raise KeyboardInterrupt(f"signal {number}")  # Ctrl-C comes without a word


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {name: index for index, name in enumerate(ORDER)}
    items.sort(key=lambda item: place.get(item.path.stem, -1))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the last log lines of the running queues and the state of the running clusters to the
    report of a failed test: neither is kept anywhere else."""
    report = yield
    if report.failed:
        running = [one for one in Replica.every if one.process is not None]
        for one in sorted(running, key=lambda one: one.log):
            words = "\n".join(one.life.splitlines()[-LAST_LINES:])
            report.sections.append((f"end of {one.log}", words))
        for lab in [one for one in Lab.every if one.cluster.alive()]:
            try:
                report.sections += lab.state()
            except (OSError, KeyError, subprocess.SubprocessError) as error:
                report.sections.append(("the cluster does not answer", str(error)))
    return report


@pytest.fixture(scope="session", autouse=True)
def buildable() -> None:
    """Where no Go can be had there is no cluster: said, not failed."""
    try:
        go()
    except Unbuildable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def figures() -> Iterator[Figures]:
    yield _figures
    _figures.write()


@pytest.fixture(scope="session")
def images() -> product.Images:
    return product.images()


@pytest.fixture(scope="session")
def place() -> Iterator[Path]:
    """Parent of the clusters' directories: on the disk, since container images are overlays, and
    short, for sockets."""
    directory = Path(
        tempfile.mkdtemp(prefix="sluice-cluster-", dir=os.environ.get("SLUICE_CLUSTER_TMP"))
    )
    yield directory
    shutil.rmtree(directory, ignore_errors=True)
    assert not directory.exists(), "the clusters' directory is gone"


@pytest.fixture(scope="session")
def installed(images: product.Images, figures: Figures, place: Path) -> Iterator[Lab]:
    """A GPU node with Sluice on it, by the chart's defaults: no value is given."""
    if os.geteuid() != 0:
        pytest.skip("a cluster needs root")
    helm = product.helm()
    with Cluster(place / "main") as cluster:
        figures.versions.append(cluster.programs.version)
        figures.more["cluster_ready_s"] = round(cluster.started_s["ready"], 1)
        lab = Lab(cluster, images, helm)
        lab.import_images()
        lab.offer_volume()
        lab.install()
        yield lab
    assert not list(cgroups.ROOT.glob(f"*/**/{cluster.name}"))


@pytest.fixture
def lab(installed: Lab, figures: Figures) -> Iterator[Lab]:
    yield installed
    settle(installed, figures)
    installed.clear()


def settle(lab: Lab, figures: Figures) -> None:
    """The books are given a moment: a pod that has just ended is in one of them still."""

    def right() -> bool:
        return not lab.lost() and not lab.given_twice()

    try:
        until("the books agree", right, SETTLED_S)
    except NodeError:
        lost, twice = lab.lost(), lab.given_twice()
        figures.lost += lost
        figures.double += twice
        assert (lost, twice) == ([], [])

"""A simulated cluster with work in it: the real queue service, nodes on its real wire, teams that lend to each other."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.kit.queue.controller import QueueController
from tests.page.fleet import Channels, Fleet, by_certificate, by_socket
from tests.queue.server.callers import callers

MAX_BY_SOCKET = 60

QUEUES = """
apiVersion: kueue.x-k8s.io/v1beta1
kind: Topology
metadata: {name: racks}
spec:
  levels: [{nodeLabel: topology/block}, {nodeLabel: topology/rack}, {nodeLabel: kubernetes.io/hostname}]
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: ResourceFlavor
metadata: {name: h100}
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: ResourceFlavor
metadata: {name: block-0}
spec: {nodeLabels: {topology/block: block-0}, topologyName: racks}
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: Cohort
metadata: {name: company}
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: Cohort
metadata: {name: research}
spec: {parentName: company}
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: WorkloadPriorityClass
metadata: {name: urgent}
value: 1000
"""
TEAM = """
---
apiVersion: v1
kind: Namespace
metadata: {{name: {name}}}
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: ClusterQueue
metadata: {{name: {name}}}
spec:
  cohort: {cohort}
  namespaceSelector: {{}}
  preemption: {{reclaimWithinCohort: Any, withinClusterQueue: LowerPriority}}
  resourceGroups:
  - coveredResources: [nvidia.com/gpu, nvidia.com/gpumem, nvidia.com/gpucores]
    flavors:
    - name: h100
      resources: [{{name: nvidia.com/gpu, nominalQuota: {quota}}}]
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: LocalQueue
metadata: {{name: main, namespace: {name}}}
spec: {{clusterQueue: {name}}}
"""
TEAMS = {"vision": ("research", 60), "speech": ("research", 60), "robots": ("research", 30), "search": ("company", 40)}  # fmt: skip


def job(name: str, team: str, memory_mib: int = 24 << 10, cores: int = 30) -> dict[str, Any]:
    requests = {
        "nvidia.com/gpu": "1",
        "nvidia.com/gpumem": str(memory_mib),
        "nvidia.com/gpucores": str(cores),
    }
    container = {"name": "c", "resources": {"requests": requests}}
    pod_set = {"name": "main", "count": 1, "template": {"spec": {"containers": [container]}}}
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta1",
        "kind": "Workload",
        "metadata": {"name": name, "namespace": team},
        "spec": {"queueName": "main", "podSets": [pod_set]},
    }


@dataclass
class Cluster:
    controller: QueueController
    fleet: Fleet

    def url(self) -> str:
        """One that works once."""
        return self.controller.cli("web").stdout.strip()

    def submit(self, *jobs: dict[str, Any]) -> None:
        self.controller.apply("\n---\n".join(json.dumps(one) for one in jobs))


@contextlib.contextmanager
def cluster(directory: Path, nodes: int = 50, jobs: int = 220) -> Iterator[Cluster]:
    """Teams take turns with their jobs; more than fit, so that some wait. Of many nodes each
    reports less often, as the settings of a large cluster have it."""
    report_s = max(2.0, nodes / 50)
    settings = [
        "workloads.max_per_user=100000",
        f"nodes.report_s={max(5.0, report_s)}",
        f"nodes.lease_s={max(15.0, 4 * report_s)}",
    ]
    width = len(str(nodes - 1))
    names_of_nodes = [f"gpu-{n:0{width}}" for n in range(nodes)]
    with service(directory, settings, names_of_nodes) as (controller, channel):
        controller.apply(
            QUEUES
            + "".join(
                TEAM.format(name=name, cohort=cohort, quota=quota * max(1, nodes // 50))
                for name, (cohort, quota) in TEAMS.items()
            )
        )
        with Fleet(channel, names_of_nodes, report_s=report_s) as fleet:
            made = Cluster(controller, fleet)
            names = list(TEAMS)
            for start in range(0, jobs, 1000):
                some = range(start, min(jobs, start + 1000))
                made.submit(*(job(f"train-{n}", names[n % len(names)]) for n in some))
            yield made


@contextlib.contextmanager
def service(
    directory: Path, settings: list[str], nodes: list[str]
) -> Iterator[tuple[QueueController, Channels]]:
    """Few nodes come over the socket; many with a certificate each, as no client may have so many streams."""
    if len(nodes) > MAX_BY_SOCKET:
        with callers(directory, *settings) as made:
            yield (
                made.controller,
                by_certificate(made.controller.tcp_address, made.authority, nodes),
            )
        return
    controller = QueueController(directory / "queue", settings=settings)
    controller.start()
    try:
        yield controller, by_socket(controller.socket)
    finally:
        controller.stop()

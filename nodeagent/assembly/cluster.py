"""Access to the API server, and what reads it: the node's pods, and the queue's decisions about
them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from nodeagent.core.kubelet import sums as kubelet_sums
from nodeagent.native import version as native_version
from nodeagent.ports.kubelet import Admissions
from nodeagent.ports.views import Finding
from nodeagent.settings.kubelet import KubeletConfig
from nodeagent.shell.grants.keeper import Keeper
from nodeagent.shell.grants.spills import SpillManager
from nodeagent.shell.pods.allocation_modes import CLAIMS
from nodeagent.shell.pods.checkpoints import PodCheckpoints
from nodeagent.shell.pods.node_sums import NodeSums
from nodeagent.shell.queue.capacity import CapacityReader
from sluicecommon.kubernetes.credentials import Access, NoAccess, from_kubeconfig, in_cluster

if TYPE_CHECKING:
    from nodeagent.adapters.kubelet.cluster import Cluster


def access_of(config: KubeletConfig, environment: Mapping[str, str]) -> tuple[Access | None, str]:
    """Returns the access to the API server, or None and the reason why there is none."""
    if "api" not in config.pod_sources and not config.advertise_sums and config.door != CLAIMS:
        return None, "kubelet.pod_sources does not name api"
    try:
        if config.kubeconfig:
            from sluicecommon import yaml_text

            return from_kubeconfig(Path(config.kubeconfig), yaml_text.read), ""
    except NoAccess as error:
        return None, f"kubelet.kubeconfig: {error}"
    found = in_cluster(environment)
    return found, "" if found is not None else "no service account and no kubelet.kubeconfig"


def make_cluster(access: Access, node: str, fatal: Callable[[BaseException], None]) -> Cluster:
    """Loads the HTTP client; raises NoAccess."""
    from nodeagent.adapters.kubelet.cluster import Cluster

    return Cluster(access, node, native_version(), kubelet_sums.ANNOTATION, fatal)


def make_admissions(cluster: Cluster) -> Admissions:
    from nodeagent.adapters.kubelet.admissions import ApiAdmissions

    return ApiAdmissions(cluster.client)


def follow_checkpoints(
    cluster: Cluster,
    sums: NodeSums | None,
    capacity: CapacityReader,
    keeper: Keeper,
    spills: SpillManager,
    fatal: Callable[[BaseException], None],
) -> None:
    """Checkpoint pods as the queue tells them by their annotation, and report the results."""
    pods = PodCheckpoints(keeper.live, spills, fatal)
    cluster.on_pod.append(pods.changed)
    cluster.on_gone.append(pods.gone)
    capacity.checkpoints = pods.answers
    if sums is not None:
        sums.more, pods.on_saved, pods.is_counted = pods.uncounted, sums.look_soon, sums.is_written
    of_the_queue = spills.overdue
    spills.overdue = lambda grant: pods.overdue(grant) or of_the_queue(grant)


def pods_without_api(kubelet_has_requests: bool, no_access: str, queued: bool) -> Finding:
    remedy = (
        "give the daemon access to the API server (kubelet.kubeconfig, or the chart's service"
        " account), or set the kubelet's feature gate PodsAPI (Kubernetes 1.36)"
    )
    if not kubelet_has_requests:
        what = "pods start with the node's defaults, whatever they request"
        if queued:
            what = "only pods named in a queue's decision can start: others cannot be identified"
        return Finding(
            "pods", "missing", f"no source for the pods' requests ({no_access}): {what}", remedy
        )
    if queued:
        return Finding(
            "pods",
            "warning",
            "requests are read from the kubelet's Pods API, which does not show whether a pod of a"
            f" Job or Deployment belongs to a queue: such a pod waits ({no_access})",
            remedy,
        )
    return Finding("pods", "ok", "requests are read from the kubelet's Pods API")
